"""In an executor: a consumer that has enough rows and hangs up, as `limit` and `head` do, is no error.

PySpark's worker then ends, and its daemon prints a BrokenPipeError (or ConnectionResetError) a task, from where none of
our code runs any more (PySpark's daemon, where the worker's last bytes are flushed). So workers that read for us
leave that one message out; whatever else they print is printed.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import Any


def leave_out_hang_ups() -> None:
    """From now on, in this process, the daemon's message of a consumer that hung up is not printed."""
    if not hasattr(traceback.print_exc, "leaves_out_hang_ups"):
        traceback.print_exc = _printing(traceback.print_exc)


def _printing(print_exc: Any) -> Any:
    def print_others(*args: Any, **named: Any) -> None:
        kind, _, trace = sys.exc_info()
        if kind not in (BrokenPipeError, ConnectionResetError) or not _is_of_daemon(trace):
            print_exc(*args, **named)

    print_others.leaves_out_hang_ups = True  # type: ignore[attr-defined]
    return print_others


def _is_of_daemon(trace: TracebackType | None) -> bool:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.endswith("pyspark/daemon.py")
