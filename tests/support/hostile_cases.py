"""The frame of programs that use tables with one damaged or crafted file: `python PROGRAM FIRST COUNT [SEED ...]`
prints a line for each wrong thing. A library may end the process, or hang, so tests look at how it ended, too."""

from __future__ import annotations

import contextlib
import faulthandler
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import skipstone as ss

SECONDS_MAX = 20.0  # of the processor, for a step
HANGS_S = 120  # by the clock: then the process ends by SIGALRM
_DEEP = 60_000  # frames, to write structs of depth 10,000


class Case:
    """A damaged table: each step raises one of our errors that names it, or returns, in little memory and time."""

    def __init__(self, harm: str, memory_mb: float):
        self.harm, self.memory_mb = harm, memory_mb
        self.faults: list[str] = []

    def use(self) -> None:
        """Take every step."""
        raise NotImplementedError

    def is_named_in(self, error: ss.SkipstoneError) -> bool:
        raise NotImplementedError

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        before, start = _peak_mb(), time.process_time()
        signal.alarm(HANGS_S)
        try:
            return call()
        except ss.SkipstoneError as error:
            if not self.is_named_in(error):
                self.fault(name, f"{type(error).__name__} that does not name what is damaged: {error}")
        except BaseException as error:
            self.fault(name, f"{type(error).__name__}: {str(error)[:200]}")
        finally:
            signal.alarm(0)
            if _peak_mb() - before > self.memory_mb:
                self.fault(name, f"{_peak_mb() - before} MB")
            if time.process_time() - start > SECONDS_MAX:
                self.fault(name, f"{time.process_time() - start:.0f} s of the processor")
        return None

    def fault(self, step: str, what: str) -> None:
        self.faults.append(f"{self.harm[:200]}: {step}: {what}")


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@contextlib.contextmanager
def deep_structs() -> Iterator[None]:
    """Let Python write structs of any depth."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEEP)
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


def run_cases(make: Callable[[Path, int], Case], seeds: Iterable[int]) -> None:
    """Use the table that `make` creates in a folder for each seed."""
    faulthandler.enable()  # prints which library ended the process
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    with tempfile.TemporaryDirectory() as root:
        for seed in seeds:
            case = make(Path(root), seed)
            print(f"# {case.harm[:300]}".replace("\n", " "), flush=True)  # the last one if the process ends
            case.use()
            for fault in case.faults:
                print(fault.replace("\n", " "), flush=True)
