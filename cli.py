"""The command `skipstone`: its entry point; the commands are in `commands`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and ends the process with its status (`commands.options.Status`).

    Args:
        arguments: what follows `skipstone`; None for the process's own.
    """
    from .commands.app import run

    run(sys.argv[1:] if arguments is None else arguments)
