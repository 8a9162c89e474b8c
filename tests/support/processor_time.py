"""Reports the processor time of tests: the slowest files at the end of a run, and where asked every test.

Wall time on a shared machine says little; processor time (of the test's process and its descendants) says what a test
costs. `SKIPSTONE_TEST_TIMES=times.tsv` writes a line for each test: processor seconds, wall seconds, worker, test.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOWEST_FILES = 10
_KEY = "processor_s"


def _seconds() -> float:
    """Of this process, the children that it waited for, and all that descend from it and run: Spark's JVM and its
    Python workers, a server. Elsewhere than on Linux these last are left out."""
    times = os.times()
    return (
        times.user + times.system + times.children_user + times.children_system + _of_running_descendants(os.getpid())
    )


def _of_running_descendants(pid: int) -> float:
    seconds = 0.0
    with contextlib.suppress(OSError):  # one that ended meanwhile
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in _text(f"/proc/{pid}/task/{task}/children").split():
                fields = _text(f"/proc/{child}/stat").rpartition(")")[2].split()
                seconds += sum(map(int, fields[11:15])) / _TICKS_A_SECOND + _of_running_descendants(int(child))
    return seconds


def _text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class _Times:
    """What one process knows; with pytest-xdist the one that collects reports knows all."""

    def __init__(self) -> None:
        self.by_file: Counter[str] = Counter()
        self.lines: list[str] = []


_TIMES = _Times()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = _seconds(), time.monotonic()
    return (yield)


_BEGAN = pytest.StashKey[tuple[float, float]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "teardown":
        processor_s, wall_s = item.stash[_BEGAN]
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        report.user_properties.append((_KEY, (max(0.0, _seconds() - processor_s), time.monotonic() - wall_s, worker)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == _KEY:
            processor_s, wall_s, worker = value
            _TIMES.by_file[report.location[0]] += processor_s
            _TIMES.lines.append(f"{processor_s:.2f}\t{wall_s:.2f}\t{worker}\t{report.nodeid}\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if len(_TIMES.by_file) > 1:
        terminalreporter.section(f"processor time: {sum(_TIMES.by_file.values()):.0f} s; the slowest files")
        for file, processor_s in _TIMES.by_file.most_common(SLOWEST_FILES):
            terminalreporter.write_line(f"{processor_s:7.1f} s  {file}")
    if path := os.environ.get("SKIPSTONE_TEST_TIMES"):
        Path(path).write_text("".join(_TIMES.lines))
