"""The survey of a cluster, by short programs on its nodes, which leave nothing behind.

machines.py  the devices, the memory and the versions of every node, and the `Cluster` of these
ways.py      the network: who reaches whom, round trips, rates and clocks
"""
