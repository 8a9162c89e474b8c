"""Contenders in separate processes, as their users have them.

In one process they affect each other: memory that one returns to the system must be requested by the next, page by
page, and on a virtual machine a page costs some 25 us. So a contender that follows one of gigabytes is slow.
"""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

_DESCRIPTOR = "SKIPSTONE_BENCH_DESCRIPTOR"


class Process:
    """This command again: it prepares the same contenders, and calls those that it receives."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env={**os.environ, _DESCRIPTOR: str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
            )

    def ask(self, *question: Any) -> Any:
        try:
            self._connection.send(question)
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise ChildProcessError(f"the process that was asked {question} has ended: its error is above") from error

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


def asking() -> Connection | None:
    """Return the connection to the process that sends requests; None in the process that started first."""
    descriptor = os.environ.get(_DESCRIPTOR)
    return None if descriptor is None else Connection(int(descriptor))
