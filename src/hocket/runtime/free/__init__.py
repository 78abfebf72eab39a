"""Plans in which a learner and the makers of its samples do not wait for each other.

ledger.py    who is making which sample, and with which version of the parameters
learner.py   publishes versions and takes the samples that are ready; saves those that are left
makers.py    when a maker, or an instance that helps it, may begin an iteration
newest.py    the newest version, written by the learner and read by all makers

Each part is attached to an `Instance`, whose interpreter calls it (`makers.take_part`).
"""
