"""C++ that steps environments, compiled into the library of `hocket.system.native`.

cartpole.cpp   CartPole's step, as a function that XLA calls
pool.cpp       the step of an environment pool that has XLA handlers, as EnvPool's have
pool.py        the Python side of pool.cpp
"""
