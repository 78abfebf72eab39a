"""Environments of other packages. The word before the colon in a name is the name of a file here.

    gymnasium.py  gymnax.py  envpool.py  playground.py

`make("gymnasium:Ant-v5")` calls `make("Ant-v5")` of `gymnasium.py`. An adapter has

    make(name, **options)   returns the environment
    names()                 returns all names it knows, if they can be listed (optional)

It imports its package at the top, and if that fails, its error names the extra to install.
"""
