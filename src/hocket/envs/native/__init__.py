"""C++ that steps environments, compiled into the library of `hocket.system.native`.

cartpole.cpp   CartPole's step, as a function that XLA calls
pool.cpp       steps a pool of environments that offers XLA handlers, such as EnvPool's
pool.py        the Python side of pool.cpp
"""
