"""NVIDIA's libraries, which are loaded if they are there. Without them there is no error.

cuda.py        the driver library: which GPU is which, and its memory
nvml.py        the management library: memory, links, MIG instances
activity.py    counters that say how busy a GPU was
mps.py         an MPS daemon of our own
mps_watch.py   a program that ends this daemon when its owner is gone
nvrtc.py       the compiler for kernels
"""
