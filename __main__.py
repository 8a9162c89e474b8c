"""`python -m skipstone` is the command `skipstone`."""

from .cli import main  # type: ignore[import-not-found]  # mypy takes this file for a script outside of the package

main()
