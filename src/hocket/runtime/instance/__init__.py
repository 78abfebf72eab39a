"""One running replica of a place.

An instance takes the program of its place and its part of the state. It exchanges messages with
other instances, and produces metrics and the new state.

instance.py      the instance, made of the parts below, and the commands that a run gives it
interpreter.py   follows the program of the place, instruction by instruction
store.py         the values that an instance holds, and how each lies on its devices
programs.py      the compiled programs of an instance
segment.py       neighbouring nodes, compiled as one function
replicas.py      runs replicas that average as one program
wiring.py        the ends of an instance's links, made in the two phases of a transport
outbox.py        the messages that an instance sends: to each target its part of every value
inbox.py         the messages that an instance receives, some of them late, and their values
account.py       the status of an instance: bytes moved, and time waited for each place
metrics.py       the metrics of a block of iterations, kept on the device that computes them
"""
