"""Functions of the host, inside programs and between them, and the services they work on.

calls.py       the host functions that an instance keeps open
lowering.py    how a program on the CPU is lowered so that it calls them by itself
call_slot.py   one such call: arrays that both sides read and write
inline.py      programs that run in the thread that calls them
thread.py      a thread of their own for calls that may hang
services.py    the services of a run
"""
