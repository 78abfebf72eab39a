"""One running replica of a place.

interpreter.py   follows the program of its place, instruction by instruction
segment.py       neighbouring nodes, compiled as one function
replicas.py      replicas that average, as one program
wiring.py        the ends of its links, made in two phases
exchange.py      what it says to others: sends, receives, waits, late messages
metrics.py       the metrics of a block, kept where they are made
"""
