"""Things that the operating system gives, and nothing of RL: memory, events, processes, names.

shared_memory.py   memory that a group of processes shares
ring.py            messages through a ring of slots in such memory
events.py          something has changed: whoever waits looks again
rendezvous.py      where a group of processes tells each other something before it begins
messages.py        messages through a socket
children.py        child processes: started, heard, watched and ended
as_child.py        how such a process behaves
signals.py         Ctrl-C and SIGTERM
on_host.py         what is computed at once is computed by the CPU
platforms.py       how JAX names the kinds of devices
garbage.py         how often Python looks for garbage
registry.py        the ways of one kind: listed, installed, or named
names.py           objects by name: `module:name`, `file.py:name`
text.py            numbers for people
native/            the C++ library, and its functions
"""
