"""Small environments in pure JAX, one file each.

acrobot.py  cartpole.py  catch.py  mountain_car.py  pendulum.py

masked.py             hides parts of an observation, so that the policy needs a memory
cartpole_backends.py  CartPole's step in C++ and as a GPU kernel
"""
