"""`python -m hocket`: the command line."""

from hocket.cli.main import main

main()
