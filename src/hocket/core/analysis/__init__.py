"""The kinds of values on a replicated place, found by comparing two traces of different size.

    kinds.py       per-environment, uniform, partial, local: what they mean and how they combine
    rules.py       what each primitive makes of the kinds of its inputs
    indexing.py    the rules of primitives that read or write at indices
    equations.py   the walk over both traces, into loops, branches and calls
    axes.py        the environment axis of each value, and the refusal of values that may be wrong
    averages.py    the calls of `averaged` in a node

The analysis is sound by default. An equation without a rule makes a local value, unless all its
inputs are uniform. Whatever is made from a local value is local, and a local value is refused
wherever somebody would see it: in the state, in a metric, or on another place. So a missing rule
costs a refusal at most, never a wrong number.
"""
