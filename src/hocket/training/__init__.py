"""The functions that a program calls: run an algorithm, or train it and keep the run in a folder.

    loop.py       `run`, `iterate`, `program`, `plan`: from an algorithm to an executor and its loop
    report.py     their return values: a report after each block, a result at the end
    keep.py       `train`: a run with records, evaluations, checkpoints and a summary
    loggers.py    the loggers of such a run, which get every row of its metrics
    settings.py   the settings of such a run
    folder.py     the folder of a run and its configuration
    homes.py      the present names of classes that have moved, so that old runs can be read
    curves.py     learning curves from the folders of runs
    load.py       a kept run as Python objects: its algorithm, state and policy
    summary.py    the summary of a run
    search.py     measures the best way to cut the devices of this machine

Only here do algorithms and environments meet strategies and the runtime.
"""
