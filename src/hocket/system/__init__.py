"""The layer over the operating system: memory, events, processes, names. It knows nothing of RL.

shared_memory.py   memory that a group of processes shares
ring.py            messages through a ring of slots in shared memory
events.py          events, which wake threads or processes that wait for a change
messages.py        messages through a socket
cores.py           the processor cores that this process may use
children.py        child processes: starting, reading, watching and ending them
as_child.py        the behaviour of a child process towards the process that started it
signals.py         Ctrl-C and SIGTERM
steward.py         the process on each node of a cluster that starts the workers there
on_host.py         running small computations on the CPU instead of the default device
platforms.py       JAX's names for the kinds of devices
garbage.py         settings of Python's garbage collector
registry.py        plugins of one kind: built in, from installed packages, or the user's own
names.py           objects by name: `module:name`, `file.py:name`
text.py            numbers as text for people
network/           connections between processes, on one machine and between machines
nodes/             versions, free memory and network of the nodes of a cluster
code/              the user's own code on its way to other machines
native/            the C++ library and its functions
"""
