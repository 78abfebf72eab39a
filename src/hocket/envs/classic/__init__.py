"""Small environments in pure JAX, one a file.

acrobot.py  cartpole.py  catch.py  mountain_car.py  pendulum.py

masked.py             hides parts of an observation, so that a task needs a memory
cartpole_backends.py  the step of CartPole in C++ and as a GPU kernel
"""
