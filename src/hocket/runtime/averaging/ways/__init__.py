"""The ways to average over replicas in processes, a file each. The listing is the registry.

shm.py    through the host's memory, which is always possible
ipc.py    on one GPU, in memory that all replicas see
nccl.py   between GPUs
hier.py   on each GPU first, then between them

Each file has its `hocket.runtime.averaging.Average` as `AVERAGE`. Installed packages add others by
the entry point `hocket.averages`, and `module:NAME` or `file.py:NAME` names any other.
"""
