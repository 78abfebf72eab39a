"""Compiling programs for the devices that they run on.

cache.py    the persistent cache of compiled programs
tuning.py   the choices that pay on these devices
"""
