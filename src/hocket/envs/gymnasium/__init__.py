"""Gymnasium environments on the host, in blocks: one block for each thread or process.

    block.py       a block: environments that are stepped one after another
    vector.py      a block of Gymnasium's own vector environments
    live.py        live environments in blocks, wherever those are stepped
    here.py        a single block, stepped in its caller's thread
    threads.py     blocks in threads
    processes.py   blocks in worker processes, with shared memory
    worker.py      the program of a worker process
    spaces.py      conversion from and to Gymnasium's spaces
    snapshot.py    the state of environments that can be saved
    stage.py       one environment that renders itself
    atari.py       Atari, stepped by ALE's own threads

The adapter that `make` calls is `hocket.envs.adapters.gymnasium`.
"""
