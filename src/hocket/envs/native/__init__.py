"""C++ that steps environments, compiled into the one library of `hocket.system.native`.

cartpole.cpp   the step of CartPole, as a function that XLA calls
pool.cpp       the step of a pool that offers itself to XLA, such as EnvPool's
pool.py        what Python has of such a pool
"""
