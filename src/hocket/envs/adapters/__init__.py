"""Environments of other packages. The part of a name before its colon selects one of these files:

    gymnasium.py  gymnax.py  envpool.py  playground.py

`make("gymnasium:Ant-v5")` calls `make("Ant-v5")` of `gymnasium.py`. An adapter has

    make(name, **options)   returns the environment
    names()                 optional: returns the names of all its environments

It imports its package at the top. If that fails, it raises an error that names the extra to
install.
"""
