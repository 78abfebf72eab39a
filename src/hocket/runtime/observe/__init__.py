"""Observe a run while it works.

status.py     what each instance is doing now, in numbers that it writes and others read
timeline.py   when each instance computed, sent, received and waited
profile.py    how the time of one compiled program divides among roles
"""
