"""The ways to average over replicas in processes. Each file here is registered under its name.

shm.py    through the host's memory, for replicas on any devices
tcp.py    between machines, for replicas on CPUs
ipc.py    on one GPU, in memory that all replicas see
nccl.py   between GPUs
tcp.py    between machines
hier.py   on each GPU first, then between them

Each file has a `hocket.runtime.averaging.Average` as `AVERAGE`. Installed packages add ways by the
entry point `hocket.averages`. Any other way is named as `module:NAME` or `file.py:NAME`.
"""
