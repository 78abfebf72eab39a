"""The command line: `hocket COMMAND ...`.

    main.py      which command, and how a mistake is told; imports nothing slow
    train.py     train an agent, and keep the run in a folder
    inspect.py   evaluate, plot and record the agents of a run
    look.py      print the plan or the graph of an algorithm, or search for slices; starts nothing
    lists.py     list algorithms, environments, strategies and devices
    replay.py    start a replay server, or look into one
    flags.py     an algorithm, its environment and its networks as flags
    picture.py   a plan as a drawing

Every command is a function `NAME_command` of its arguments. It parses them, calls
`hocket.training`, and prints.
"""
