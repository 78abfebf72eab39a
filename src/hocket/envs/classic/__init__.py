"""Small environments in pure JAX, one a file.

`cartpole_backends` has the step of CartPole in C++ and as a GPU kernel.
"""
