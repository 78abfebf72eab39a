"""How the instances of a plan are started, watched and ended.

launchers/      the ways to start them, a file each
worker.py       an instance as a process of its own
rpc.py          commands and answers between a run and such a process
shipping.py     an algorithm on its way there
memory_map.py   where in the shared memory of a plan each thing lies
watch.py        how a run ends when it cannot go on
leaving.py      how a worker ends, on a GPU not in the midst of a program
"""
