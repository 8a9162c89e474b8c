"""`python -m skipstone` is the command `skipstone`."""

from .commands.app import main

main()
