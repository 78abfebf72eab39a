"""Gymnasium environments on the host, in blocks: one block for each thread or process.

    block.py       a block: environments that are stepped one after another
    vector.py      a block of Gymnasium's own vector environments
    live.py        the base class of the live environments in the next three files
    here.py        a single block, stepped in its caller's thread
    threads.py     blocks in threads
    processes.py   blocks in worker processes, with shared memory
    worker.py      the program of a worker process
    spaces.py      conversion from and to Gymnasium's spaces
    snapshot.py    saves and restores the state of one environment
    stage.py       one environment that renders itself, for recordings
    atari.py       Atari, stepped by ALE's own threads

The adapter that `make` calls is `hocket.envs.adapters.gymnasium`.
"""
