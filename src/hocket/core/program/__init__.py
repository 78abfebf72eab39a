"""The vocabulary of an algorithm's step, and the contract that it keeps.

algorithm.py   the protocol: `init`, `step`, `policy`
fragment.py    a named call in a step: the unit of placement
averaged.py    `averaged(x)`: a mean over environments, wherever they are
backend.py     functions with several implementations, one of which a place chooses
host.py        host functions: ordinary code inside a traced program
service.py     services: parts of the state that are kept outside of the program
contract.py    the checks of a step that a trace allows
tuning.py      hardware choices that change the traced program and not its numbers
context.py     settings that hold while a program is traced
loops.py       `has_loops`: does XLA see loops in a function?
describe.py    an algorithm as JSON, and back
"""
