"""The ways to average over replicas in processes, a file each: the listing is the registry.

shm.py    through the memory of the host: always possible
ipc.py    on one GPU, in memory that all see
nccl.py   between GPUs
hier.py   on each GPU first, then between them

Each has its `hocket.runtime.averaging.Average` as `AVERAGE`. Installed packages bring others by the
entry point `hocket.averages`, and `module:NAME` or `file.py:NAME` names any other.
"""
