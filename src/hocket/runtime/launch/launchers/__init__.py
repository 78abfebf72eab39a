"""The ways to start instances, a file each.

threads.py     threads of this process
processes.py   processes of this machine, which share memory
"""
