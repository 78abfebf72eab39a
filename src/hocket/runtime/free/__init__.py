"""Plans in which nobody waits: makers of samples, and a learner. They take part in an `Instance`.

ledger.py    who is at work on which sample, made with which version
learner.py   publishes versions, and takes the samples that are ready; saves those that are left
makers.py    when an iteration of a maker may begin, and of those who work for it
newest.py    the newest version, from one to many
"""
