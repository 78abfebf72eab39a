"""The functions that a program calls: run an algorithm, or train it in a folder that is kept.

    loop.py       `run`, `iterate`, `program`, `plan`: from an algorithm to an executor and its loop
    report.py     what they give back: a report a block, a result at the end
    keep.py       `train`: a run with records, evaluations, checkpoints and a summary
    loggers.py    who is told of every row of such a run
    settings.py   the settings of such a run
    folder.py     where a run lies, and its configuration
    homes.py      where the names in old runs are now
    curves.py     learning curves from such folders
    load.py       a kept run as Python objects: its algorithm, state and policy
    summary.py    the summary of a run
    search.py     how the devices of this machine are best cut, by measurement

Here the two columns meet: algorithms and environments on one side, strategies and the runtime on
the other.
"""
