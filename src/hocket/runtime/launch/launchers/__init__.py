"""The ways to start instances, a file each.

threads.py     as threads of this process
processes.py   as processes of this machine, which share memory
"""
