"""From one program for all places to one program for each place.

placement.py      where each node runs and each value lives, given where fragments run
instructions.py   the five instructions: `Compute`, `Host`, `Send`, `Receive`, `Repeat`
project.py        the programs of all places, and why they cannot deadlock
host_loops.py     loops that call the host: can one compiled program make all the calls?
"""
