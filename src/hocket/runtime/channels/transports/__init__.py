"""The built-in transports. Each file has its own as `TRANSPORT`, and the listing is the registry.

same_device.py     between threads on one device: hands over the arrays themselves
device.py          between devices of one process
shared_memory.py   between processes: a ring of slots in memory that they share
one_gpu.py         between processes on one GPU: the message stays on it
"""
