"""A quadruped in pure JAX: four legs, eight motors, and a ground that gives a little.

env.py        the environment
body.py       its measures, and the same body for MuJoCo
physics.py    how it moves
arrow.py      the linear system of its joints, in the shape of an arrow
vectors.py    small vectors as separate arrays
backends.py   its step as one GPU kernel
"""
