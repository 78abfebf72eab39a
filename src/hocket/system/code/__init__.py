"""Code that travels to other machines: the user's own folders of Python files.

origin.py      the folder that a module is imported from, unless it is installed
project.py     the files of such a folder that travel, which are bounded in size
archive.py     files as a zip, known by its digest
cache.py       the folders that a node has received, and keeps for later runs

A folder is packed on the machine of the run, and unpacked once on each node. There it goes on
`PYTHONPATH`, so that modules have the names that they have on the machine of the run.
"""
