"""The ways to start instances, one in each file.

threads.py     as threads of this process
processes.py   as processes of this machine, which share memory
loopback.py    on nodes that are all this machine, to try out a cluster
hosts.py       on machines that are reached by ssh
ray.py         on the nodes of a Ray cluster
"""
