"""The command `skipstone`.

This file is only the door: the commands stand in `commands`, which needs the extra `cli`. Where that is missing, one
line says what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_NEEDED = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and ends the process with its status: 0, 1 (`verify` and `demo` found something wrong), 2
    (an error of ours, or a command that cannot be read).

    Args:
        arguments: what stands after `skipstone`; None for the process's own.
    """
    try:
        from .commands.app import run
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        print(f"skipstone: its commands need {error.name}: pip install 'skipstone[cli]'", file=sys.stderr)
        sys.exit(2)
    run(sys.argv[1:] if arguments is None else arguments)
