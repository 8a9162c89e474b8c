"""The verbs of the command line, behind `cli.py`; begin at `app`."""
