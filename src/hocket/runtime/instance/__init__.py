"""One running replica of a place: what it holds, follows, sends and receives.

instance.py      the instance, made of the parts below; what a run commands
store.py         the values it holds, and how each lies on its devices
programs.py      its compiled programs
segment.py       neighbouring nodes, compiled as one function
replicas.py      replicas that average, as one program
interpreter.py   follows the program of its place, instruction by instruction
wiring.py        the ends of its links, made in the two phases of a transport
outbox.py        what it sends: to each target its part of every value
inbox.py         what it receives: parts that are joined, messages that are late
account.py       its status: what has moved, and for how long it waited for whom
metrics.py       the metrics of a block, kept where they are made
"""
