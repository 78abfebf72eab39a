"""What a run can be seen doing.

status.py     what each instance is doing now: numbers that it writes and others read
timeline.py   when each instance computed, sent, received and waited
profile.py    where the time of one compiled program goes, by role
"""
