"""The layer over the operating system, without any RL: memory, events, processes, names.

shared_memory.py   memory that a group of processes shares
ring.py            messages through a ring of slots in shared memory
events.py          events, which wake threads or processes that wait for a change
rendezvous.py      an exchange of messages within a group of processes before it starts work
messages.py        messages through a socket
children.py        child processes: starting, reading, watching and ending them
as_child.py        the other side: how a child process behaves
signals.py         Ctrl-C and SIGTERM
on_host.py         running small computations on the CPU instead of the default device
platforms.py       JAX's names for the kinds of devices
garbage.py         how often Python looks for garbage
registry.py        plugins of one kind: our own, those of installed packages, and the user's
names.py           objects by name: `module:name`, `file.py:name`
text.py            numbers for people
native/            the C++ library and its functions
"""
