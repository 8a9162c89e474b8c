"""`python -m skipstone` is the command `skipstone`."""

from skipstone.cli import main

main()
