"""C++ that steps environments, compiled into the library of `hocket.system.native`.

cartpole.cpp   CartPole's step, as a function that XLA calls
pool.cpp       the step of an environment pool with handlers for XLA, such as EnvPool's
pool.py        the Python side of such a pool
"""
