"""The core: programs, graphs and plans, for algorithms and runtime alike. No RL, no hardware.

    program/      what a `step` may say: fragments, `averaged`, host functions, services
    graph/        the step, traced: fragments, loops, and the values between them
    analysis/     which values replicas compute right, and the refusal of those that may be wrong
    projection/   splits one program for all places into one program for each
    plan/         places, channels and schedule as data, with the checks that refuse a plan

In this order: a sub-package imports only those before it.
"""
