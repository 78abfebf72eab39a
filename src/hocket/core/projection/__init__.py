"""From one program for all places to one program for each place.

placement.py      where each node runs and each value lives, given where fragments run
instructions.py   the five instructions: `Compute`, `Host`, `Send`, `Receive`, `Repeat`
project.py        the programs: each a subsequence of one order, so that nobody can deadlock
host_loops.py     loops that call the host, and whether a compiled loop can do it by itself
"""
