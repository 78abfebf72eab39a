"""Programs and functions by which a node of a cluster describes its machine, without JAX.

versions.py   the versions of all packages that decide numbers, and what differs between machines
resources.py  the free memory and the free space on disk
probe.py      a program that measures the network between nodes
keeper.py     starts a program on the node of an engine such as Ray, and tells how it ends
tethered.py   a program that ends with the process that has started it
"""
