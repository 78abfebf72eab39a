"""NVIDIA's libraries. Each is loaded when it is first used, so importing this needs none.

cuda.py        the driver library: the UUIDs of GPUs, and what a process may use of one
nvml.py        the management library: memory, links, MIG instances
activity.py    counters that say how busy a GPU was
mps.py         an MPS daemon that this process starts
mps_watch.py   a program that ends the daemon when our process is gone
nvrtc.py       the compiler for kernels
"""
