"""Reports the processor time of tests, and with `--processor-limits` fails a run that takes too much of it.

Wall time on a shared machine means little; processor time (of the test's process and its descendants) is what a test
costs. `SKIPSTONE_TEST_TIMES=times.tsv` writes a line for each test: processor seconds, wall seconds, worker, test.

`make test` passes `--processor-limits`: a run fails if its tests together take more than `RUN_S_MAX`, or if a test
takes more than twice `TEST_S_MAX` and is not in `tests/slow_tests.txt`. Both grow with the slowness of the machine.
Fixtures that tests share (Spark, a server, a lake of a module) count for the run, and not for the test that is the
first to use them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOWEST_FILES = 10
TEST_S_MAX = 3
TOLERANCE = 2  # a test fails above so many times its limit
RUN_S_MAX = 640
IMPORT_S = 0.106  # of pyarrow, where the limits were chosen; a slower machine gets more time, up to twice as much
SLOW_TESTS = Path(__file__).parents[1] / "slow_tests.txt"
_KEY = "processor_s"


def _seconds() -> float:
    """Of this process, the children that it waited for, and all that descend from it and run: Spark's JVM and its
    Python workers, a server. Elsewhere than on Linux these last are left out."""
    times = os.times()
    seconds = times.user + times.system + times.children_user + times.children_system
    return seconds + (_of_running_descendants(os.getpid()) if _has_children() else 0.0)


def _has_children() -> bool:
    """Asked before and after each test: looking through /proc takes longer than many a test."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _of_running_descendants(pid: int) -> float:
    seconds = 0.0
    with contextlib.suppress(OSError):  # one that has just ended
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
    """What one process has seen; with pytest-xdist the one that collects reports has seen all."""

    def __init__(self) -> None:
        self.by_file: Counter[str] = Counter()
        self.lines: list[str] = []
        self.slow: list[str] = []
        self.shared_s = 0.0  # of the fixtures that the present test is the first to use
        self.is_in_shared = False

    def excesses(self) -> list[str]:
        """Return a sentence for each limit that the run exceeds."""
        found, run_s, most_s = list(self.slow), sum(self.by_file.values()), RUN_S_MAX * slowness()
        if run_s > most_s:
            found.append(f"all tests took {run_s:.0f} s of processor time, more than {most_s:.0f} s")
        return found


_TIMES = _Times()


@functools.cache
def slowness() -> float:
    """Return how many times as long as the reference machine this one takes to import pyarrow: from 1 to 2."""
    times_s = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import pyarrow"], check=True)
        times_s.append(time.monotonic() - began)
    return min(max(1.0, sorted(times_s)[2] / IMPORT_S), 2.0)


def slow_tests() -> set[str]:
    """Return the tests that may take more than `TEST_S_MAX`, as `folder/file.py::test` or a whole `folder/file.py`."""
    lines = SLOW_TESTS.read_text(encoding="utf-8").splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processor-limits", action="store_true", help="fail if tests take too much processor time")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> Iterator[None]:
    if fixturedef.scope == "function" or _TIMES.is_in_shared:
        return (yield)
    _TIMES.is_in_shared, began = True, _seconds()
    try:
        return (yield)
    finally:
        _TIMES.is_in_shared = False
        _TIMES.shared_s += _seconds() - began


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN], _TIMES.shared_s = (_seconds(), time.monotonic()), 0.0
    return (yield)


_BEGAN = pytest.StashKey[tuple[float, float]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "teardown":
        processor_s, wall_s = item.stash[_BEGAN]
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        used_s, shared_s = max(0.0, _seconds() - processor_s), _TIMES.shared_s
        report.user_properties.append((_KEY, (used_s, shared_s, time.monotonic() - wall_s, worker)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == _KEY:
            processor_s, shared_s, wall_s, worker = value
            own_s, test = processor_s - shared_s, report.nodeid.partition("[")[0].removeprefix("tests/")
            limit_s = TOLERANCE * TEST_S_MAX
            if own_s > limit_s and own_s > limit_s * slowness() and not {test, test.partition("::")[0]} & slow_tests():
                _TIMES.slow.append(f"{report.nodeid} took {own_s:.1f} s of processor time: see tests/slow_tests.txt")
            _TIMES.by_file[report.location[0]] += processor_s
            _TIMES.lines.append(f"{processor_s:.2f}\t{wall_s:.2f}\t{worker}\t{report.nodeid}\n")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    is_limited = session.config.getoption("--processor-limits") and not hasattr(session.config, "workerinput")
    if is_limited and _TIMES.excesses() and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.getoption("--processor-limits"):
        for excess in _TIMES.excesses():
            terminalreporter.write_line(f"TOO SLOW {excess}", red=True)
    if len(_TIMES.by_file) > 1:
        terminalreporter.section(f"processor time: {sum(_TIMES.by_file.values()):.0f} s; the slowest files")
        for file, processor_s in _TIMES.by_file.most_common(SLOWEST_FILES):
            terminalreporter.write_line(f"{processor_s:7.1f} s  {file}")
    if path := os.environ.get("SKIPSTONE_TEST_TIMES"):
        Path(path).write_text("".join(_TIMES.lines))
