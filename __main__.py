"""`python -m skipstone` is the command `skipstone`."""

from .cli import main

main()
