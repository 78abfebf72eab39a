"""What the step of an algorithm may say, and what hocket says of an algorithm.

algorithm.py   the protocol: `init`, `step`, `policy`
fragment.py    a named call in a step: the unit of placement
averaged.py    `averaged(x)`: a mean over environments, wherever they are
backend.py     functions with several implementations, of which a place chooses one
host.py        host functions: ordinary code inside a traced program
service.py     services: a part of the state that is kept outside of the program
contract.py    the contract of an algorithm, as far as a trace can tell
tuning.py      choices that a program is traced for: the same numbers, another program
loops.py       whether a function has loops
describe.py    an algorithm as JSON, and back
"""
