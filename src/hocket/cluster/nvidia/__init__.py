"""NVIDIA's libraries: loaded where there are some, absent without an error.

cuda.py        the driver: devices by their identity
nvml.py        the management library: memory, links, processes
activity.py    how busy a GPU was
mps.py         an MPS daemon of our own; mps_watch.py ends it with its owner
nvrtc.py       the compiler of kernels
"""
