"""Carries a plan out: as one program, or as instances that a launcher starts.

    executor.py      what every way of carrying out a plan offers to a run
    fused.py         a plan of one place: the whole step in one XLA program
    seeds.py         several agents at once on slices
    distributed.py   a plan of several instances: commands them, and joins what they give back
    checkpoint.py    the whole state on disk
    refusals.py      whether the hardware that a plan names is there

    compile/      compiling programs
    observe/      what a run can be seen doing
    channels/     how a message gets from one instance to another
    averaging/    `averaged` between processes
    host_calls/   functions of the host, and services
    instance/     one running replica of a place
    free/         plans in which nobody waits
    launch/       how instances are started, watched and ended

In the order of their imports: each stands on those above it.
"""
