"""Contenders in processes of their own, as their users have them.

In one process they are not alone: memory that one gives back to the system is memory that the next has to ask for, page
by page, and on a virtual machine a page costs some 25 us. So who follows a contender of gigabytes is slow.
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
    """This command again: it makes the same contenders ready, and calls those that it is asked for."""

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
    """Who asks, in such a process; None in the one that began."""
    descriptor = os.environ.get(_DESCRIPTOR)
    return None if descriptor is None else Connection(int(descriptor))
