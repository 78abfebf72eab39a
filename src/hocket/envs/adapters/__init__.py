"""Environments of other packages. The word before the colon of a name is a file here.

    gymnasium.py  gymnax.py  envpool.py  playground.py

`make("gymnasium:Ant-v5")` calls `make("Ant-v5")` of `gymnasium.py`. An adapter has

    make(name, **options)   the environment
    names()                 the names that it knows, where they can be listed (optional)

and imports its package when it is imported, with an error that names the extra to install.
"""
