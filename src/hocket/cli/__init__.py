"""The command line: `hocket COMMAND ...`.

    main.py      picks the command and prints errors; imports nothing slow
    train.py     train an agent, and keep the run in a folder
    inspect.py   evaluate, plot and record the agents of a run
    look.py      print the plan or the graph of an algorithm, or search for the best slices
    lists.py     list algorithms, environments, strategies and devices
    nodes.py     list the nodes of a cluster, and what is wrong with them
    replay.py    start a replay server, or show what one holds
    flags.py     flags for an algorithm, its environment and its networks
    picture.py   the drawing of a plan
    picture_nodes.py  the drawing of a plan on the nodes of a cluster

The function `NAME_command` carries out the command NAME: it parses the arguments, calls
`hocket.training` and prints.
"""
