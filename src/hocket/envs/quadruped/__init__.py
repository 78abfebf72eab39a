"""A quadruped in pure JAX: four legs, eight motors, and slightly soft ground.

env.py        the environment
body.py       its dimensions and masses, and the same body as a MuJoCo model
physics.py    the physics of its motion
arrow.py      the arrow-shaped linear systems that the physics solves
vectors.py    small vectors as separate arrays
backends.py   its step as one GPU kernel
"""
