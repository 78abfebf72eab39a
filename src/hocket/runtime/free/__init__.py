"""Free plans, in which a learner and the makers of its samples run asynchronously.

ledger.py    who is making which sample, and with which version of the parameters
learner.py   publishes versions, takes the samples that are ready, and saves those not yet taken
makers.py    when a maker, or an instance that helps it, may begin an iteration
newest.py    the newest version, written by the learner and read by all makers

`makers.take_part` attaches a learner, a maker or a helper to an `Instance`, which then calls it.
"""
