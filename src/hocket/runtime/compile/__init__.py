"""Compile programs for the devices that they run on.

cache.py    the persistent cache of compiled programs
tuning.py   choices that make programs faster on particular devices
"""
