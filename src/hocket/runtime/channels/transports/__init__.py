"""The ways in which a message gets from one instance to another, a file each with its `TRANSPORT`.

same_device.py     between threads on one device: the arrays themselves
device.py          between devices of one process
shared_memory.py   between processes: a ring of slots in memory that they share
one_gpu.py         between processes on one GPU: the message stays there
"""
