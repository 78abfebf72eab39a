"""Host functions, called inside programs or between programs, and the services they use.

calls.py       the host functions that an instance keeps open
lowering.py    lowers a program for the CPU, so that the program itself calls host functions
call_slot.py   one host function that compiled programs call, and the arrays of its calls
inline.py      runs programs in the thread that calls them
thread.py      a thread for calls that may hang
services.py    the services of a run
"""
