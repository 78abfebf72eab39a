"""Host functions, called inside programs and between them, and the services they work on.

calls.py       the host functions that an instance keeps open
lowering.py    how a program on the CPU is lowered, so that it calls them by itself
call_slot.py   one such call, with arrays that both sides read and write
inline.py      how programs run in the thread that calls them
thread.py      a thread for calls that may hang
services.py    the services of a run
"""
