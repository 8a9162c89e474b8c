"""What tests need that start a server of their own: ports that are free, and an end with the tests' own."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import sys

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that no process listened on a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def die_with_parent() -> None:
    """For Popen's preexec_fn: the process is killed if the one that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
