"""The graph of a step: read from the traced program, never from source text.

trace.py        `trace(algorithm, num_envs) -> Graph`: values, nodes, loops, labels
walk.py         walks over equations: labels, calls, source lines
host_calls.py   the nodes that call host functions
served.py       graphs in which services keep parts of the state
tickets.py      the check that a step never uses an old version of what a service keeps
digest.py       a short text that is equal for equal programs, in every process
"""
