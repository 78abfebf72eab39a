"""The graph of a step: read from the traced program, never from source text.

trace.py        `trace(algorithm, num_envs) -> Graph`: values, nodes, loops, labels
walk.py         walks over equations: labels, calls, source lines
host_calls.py   which nodes are calls of host functions
served.py       a graph whose services keep what they can of the state
tickets.py      who may read the ticket of a service, and when
digest.py       a short text that is equal for equal programs, in every process
"""
