"""Carry out a plan, either as one program or as instances that a launcher starts.

    executor.py      the interface that every way of carrying out a plan offers to a run
    fused.py         a plan of one place: the whole step in one XLA program
    distributed.py   a plan of several instances: commands them and joins their results
    seeds.py         several agents at once, spread over slices
    checkpoint.py    the whole state on disk
    refusals.py      refuse a plan that cannot run on this machine

    compile/      compiling programs
    observe/      status, timeline and profile of a run
    channels/     how a message gets from one instance to another
    averaging/    `averaged` between processes
    host_calls/   functions of the host, and services
    instance/     one running replica of a place
    free/         plans in which a learner and the makers of its samples do not wait for each other
    launch/       how instances are started, watched and ended

The folders are in the order of their imports: each imports only from those above it.
"""
