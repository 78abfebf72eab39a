"""One running replica of a place.

The program of a place and a part of the state come in; messages to other instances, metrics and the
new state go out.

instance.py      the instance, made of the parts below, and the commands of a run
interpreter.py   follows the program of its place, instruction by instruction
store.py         the values it holds, and how each lies on its devices
programs.py      its compiled programs
segment.py       neighbouring nodes, compiled as one function
replicas.py      replicas that average, as one program
wiring.py        the ends of its links, made in the two phases of a transport
outbox.py        the messages it sends: to each target its part of every value
inbox.py         the messages it receives, some of them late, and the values made of them
account.py       its status: the bytes it has moved, and how long it waited for whom
metrics.py       the metrics of a block, kept where they are computed
"""
