"""What a value on a replicated place is, found by comparing two traces of different size.

    axes.py    which axis of a value is the environments'; the walk over a replica's program
    kinds.py   per-environment, uniform, partial or local: the kinds, and how they combine
    rules.py   what each primitive makes of the kinds of its inputs

An equation without a rule makes a local value, and local values are refused wherever they would
reach the state, a metric, another place or `averaged`: the analysis is sound by default.
"""
