"""The verbs of the command line, behind `cli.py`; they need the extra `cli`."""
