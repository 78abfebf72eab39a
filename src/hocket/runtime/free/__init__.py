"""Plans in which nobody waits: makers of samples, and a learner.

ledger.py    who is at work on which sample, made with which version
mailbox.py   what an instance sends and receives where a channel is free
newest.py    the newest version, from one to many
"""
