"""Gymnasium's environments on the host: one block of them a thread or process.

    block.py       a block: environments that are stepped one after the other
    vector.py      a block of Gymnasium's own vector environments
    live.py        live environments, wherever their blocks are stepped
    here.py        a block in the thread of whoever steps it
    threads.py     blocks in threads
    processes.py   blocks in processes, which share memory that has no name
    worker.py      such a process
    spaces.py      spaces of Gymnasium as ours
    snapshot.py    the state of environments that can be copied
    stage.py       one environment that shows itself
    atari.py       Atari, stepped by the threads of ALE

The adapter that `make` calls is `hocket.envs.adapters.gymnasium`.
"""
