"""Carry out a plan, either as one program or as instances that a launcher starts.

    executor.py      the interface that every way of carrying out a plan offers to a run
    fused.py         a plan of one place: the whole step in one XLA program
    distributed.py   a plan of several instances: commands them and joins their results
    seeds.py         several agents at once, spread over slices of devices
    checkpoint.py    the whole state on disk
    refusals.py      refuse a plan that cannot run on this machine

    compile/      compiling programs
    observe/      status, timeline and profile of a run
    channels/     how a message gets from one instance to another
    averaging/    the mean over replicas in several processes (`averaged`)
    host_calls/   calls of host functions, and the services that these functions use
    instance/     one running replica of a place
    free/         free plans: a learner and the makers of its samples run asynchronously
    launch/       how instances are started, watched and ended

The folders are in the order of their imports: each imports only from those above it.
"""
