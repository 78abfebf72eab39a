"""The built-in transports. Each file has one as `TRANSPORT`, and is registered under its name.

same_device.py     between threads on one device: hands over the arrays themselves
device.py          between devices of one process: copies arrays from device to device
shared_memory.py   between processes: copies arrays through a ring of slots in shared memory
tcp.py             between machines: sends copies over a connection for each link
one_gpu.py         between processes on one GPU: leaves the message on the GPU
"""
