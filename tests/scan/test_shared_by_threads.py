"""Threads that share a table or a plan: none waits for the reads of another, and the process may be forked."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import every, examples
from power_cut_disk import without_flushes
from skipstone.base import forks
from skipstone.base.caching import cached_property
from skipstone.engine.storage import LocalStorage

THREADS = 8
LONG_S = 60  # so long nothing takes that goes on at all
READS = ("stat", "read", "read_entry", "read_ranges", "open_file", "list_folder")


@pytest.fixture
def lake(tmp_path: Path) -> ss.Table:
    """400 rows in two files, with an index of each kind; nothing of it is in memory."""
    with without_flushes():
        table = ss.create(tmp_path / "lake", schema=pa.schema([("id", pa.int64()), ("s", pa.string())]))
        table.create_index("id", kind="secondary")
        table.create_index("s", kind="bloom")
        for low in (0, 200):
            with table.transaction() as tx:  # the second file's ids stand between those of the first
                ids = list(range(low // 200, 400, 2))
                tx.write(pa.table({"id": ids, "s": [f"k{i}" for i in ids]}))
    table.handle.forget()
    return ss.open(tmp_path / "lake", on_stale="ignore")


def _needle(number: int) -> str:
    return f"id = {number} AND s = 'k{number}'"


@pytest.fixture
def before_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Has something done before each read of a local storage, with the path that is read."""

    def set_up(work: Callable[[str], None]) -> None:
        for name in READS:
            monkeypatch.setattr(LocalStorage, name, _after(work, getattr(LocalStorage, name)))

    return set_up


def _after(work: Callable[[str], None], method: Callable) -> Callable:
    def read(self: LocalStorage, path: Any, *more: Any) -> Any:
        work(path if isinstance(path, str) else path.path)
        return method(self, path, *more)

    return read


# -- forks ------------------------------------------------------------------------------------------------------------


def _in_child(work: Callable[[], bool]) -> str:
    """How it goes with `work` in a forked process: "right", "wrong" or "hangs"."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks among threads
        pid = os.fork()
    if pid == 0:
        status = 2
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return "right" if status == 0 else "wrong"
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


class _Stop:
    """Stops one thread before its read number `at`, until it is released."""

    def __init__(self, at: int):
        self.is_there, self.is_free = threading.Event(), threading.Event()
        self._left, self._thread = at, 0

    def begin(self) -> None:
        self._thread = threading.get_ident()

    def __call__(self, path: str) -> None:
        if threading.get_ident() == self._thread:
            if self._left == 0:
                self.is_there.set()
                self.is_free.wait(LONG_S)
            self._left -= 1


def test_a_forked_process_reads_on_wherever_a_thread_of_its_parent_was(lake: ss.Table, before_reads: Callable) -> None:
    """It shares the handle and the plan of a thread that stopped in each of its reads in turn."""
    for at in range(0, 100, every(5)):
        lake.handle.forget()
        table = ss.open(lake.location, on_stale="ignore")
        plan = table.scan(_needle(7))
        stop = _Stop(at)
        before_reads(stop)

        def read(plan: ss.Plan = plan, stop: _Stop = stop) -> int:
            stop.begin()
            rows = plan.to_table().num_rows + len(plan.steps)
            stop.is_there.set()
            return rows

        def read_in_child(plan: ss.Plan = plan, table: ss.Table = table) -> bool:
            with ss.open(table.location, on_stale="ignore") as own:
                found = [p.to_table().to_pylist() for p in (plan, table.scan(_needle(7)), own.scan(_needle(7)))]
            return found == [[{"id": 7, "s": "k7"}]] * 3

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            assert stop.is_there.wait(LONG_S)
            try:
                assert _in_child(read_in_child) == "right", f"read number {at}"
            finally:
                stop.is_free.set()
            assert reading.result(LONG_S) > 1
        if stop._left >= 0:
            break
    assert 8 < at < 99


def test_a_forked_process_counts_what_the_cache_still_holds(lake: ss.Table) -> None:
    lake.scan(_needle(7)).to_table()
    used = ss.cache_info().used_bytes

    def work() -> bool:
        info = ss.cache_info()
        is_less = 0 < info.used_bytes < used and sum(info.by_root.values()) == info.used_bytes
        lake.scan(_needle(7)).to_table()
        return is_less and ss.cache_info().used_bytes > info.used_bytes

    assert _in_child(work) == "right"


def test_a_fork_waits_for_the_imports_of_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import needs a lock that a hook of logging keeps from its turn until the fork."""
    (tmp_path / "slowly_imported.py").write_text("import logging, time; time.sleep(0.3); logging.getLogger(__name__)")
    monkeypatch.syspath_prepend(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        importing = pool.submit(importlib.import_module, "slowly_imported")
        while "slowly_imported" not in sys.modules:
            time.sleep(0.001)
        assert _in_child(lambda: hasattr(importlib.import_module("slowly_imported"), "time")) == "right"
        importing.result(LONG_S)


def test_an_import_that_does_not_end_delays_one_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some programs run within an import."""
    (tmp_path / "running_program.py").write_text("import threading; end = threading.Event(); end.wait()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(forks, "WAIT_S_MAX", 2)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(importlib.import_module, "running_program")
        while not hasattr(sys.modules.get("running_program"), "end"):
            time.sleep(0.001)
        times_s = []
        for _ in range(3):
            began = time.monotonic()
            assert _in_child(lambda: True) == "right"
            times_s.append(time.monotonic() - began)
        sys.modules["running_program"].end.set()
        running.result(LONG_S)
    assert times_s[0] > 2 > min(times_s[1:])


_FIRST_SCANS = """
import os, random, signal, sys, threading, time, warnings
import skipstone as ss

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks among threads
location, seed = sys.argv[1], int(sys.argv[2])
wheres = ["id = 7 AND s = 'k7'", "lower(s) = 'k7'", "s LIKE 'k7' AND id % 7 = 0"]

def scans():
    return [ss.open(location, on_stale="ignore").scan(where).to_table().column("id").to_pylist() for where in wheres]

threads = [threading.Thread(target=scans) for _ in range(4)]
for thread in threads:
    thread.start()
children = []
for _ in range(3):
    time.sleep(random.Random(seed).random() * 0.2)
    pid = os.fork()
    if pid == 0:
        signal.alarm(50)  # ends a child that hangs
        os._exit(scans() != [[7]] * 3)
    children.append(pid)
print([os.waitpid(pid, 0)[1] for pid in children])
for thread in threads:
    thread.join()  # Python ends a thread that is within DuckDB at exit by ending the process
"""


@pytest.mark.parametrize("seed", range(examples(1)))
def test_processes_forked_next_to_first_scans_scan(lake: ss.Table, seed: int) -> None:
    """The threads import what a scan needs while the process forks."""
    command = [sys.executable, "-c", _FIRST_SCANS, lake.location, str(seed)]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == "[0, 0, 0]\n"


# -- waiting ----------------------------------------------------------------------------------------------------------


def _each(work: Callable[[int], Any]) -> list:
    """The results of `work(number)` in as many threads, which begin together."""
    start = threading.Barrier(THREADS)

    def begin(number: int) -> Any:
        start.wait(LONG_S)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


class _Meeting:
    """Opens the first read of a run, to each thread but the main one, once all of them are about to read that run."""

    def __init__(self) -> None:
        self.barriers: dict[str, threading.Barrier] = {}
        self._came = threading.local()

    def __call__(self, path: str) -> None:
        came = self._came.__dict__.setdefault("paths", set())
        if path.startswith("runs/") and path not in came and threading.current_thread() is not threading.main_thread():
            came.add(path)
            self.barriers.setdefault(path, threading.Barrier(THREADS)).wait(LONG_S)


@pytest.fixture
def meeting(before_reads: Callable) -> Iterator[_Meeting]:
    found = _Meeting()
    before_reads(found)
    yield found
    assert len(found.barriers) >= 4, "runs of the manifest, of statistics, filters and positions"


def test_threads_with_a_table_read_side_by_side(lake: ss.Table, meeting: _Meeting) -> None:
    found = _each(lambda number: lake.scan(_needle(2 * number)).to_table().to_pylist())
    assert found == [[{"id": 2 * number, "s": f"k{2 * number}"}] for number in range(THREADS)]


def test_threads_with_a_plan_read_side_by_side_and_agree(lake: ss.Table, meeting: _Meeting) -> None:
    plan = lake.scan(_needle(7))
    found = _each(lambda number: (plan.to_table().to_pylist(), plan.count(), plan.files().num_rows))
    assert found == [([{"id": 7, "s": "k7"}], 1, 1)] * THREADS
    alone = lake.scan(_needle(7))
    alone.to_table()
    planned = [(s.name, s.index, s.came_in, s.went_out) for s in alone.steps if s.unit != "rows"]
    assert [(s.name, s.index, s.came_in, s.went_out) for s in plan.steps if s.unit != "rows"] == planned


def test_threads_with_a_table_list_its_files_side_by_side(lake: ss.Table, before_reads: Callable) -> None:
    meeting = _Meeting()
    before_reads(meeting)
    found = _each(lambda number: (lake.files().num_rows, lake.partitions().num_rows))
    assert found == [(2, 1)] * THREADS and len(meeting.barriers) >= 1


def test_threads_that_find_damage_in_one_plan_agree(lake: ss.Table) -> None:
    """Each notes it, and begins again without the run; none meets what another has half taken back."""
    runs = [run for index in lake.handle.instant.indexes if index.kind in ("stats", "secondary") for run in index.runs]
    for run in runs:
        path = Path(lake.location, ".skipstone", run.path)
        data = bytearray(path.read_bytes())
        data[8 : len(data) // 2] = bytes(len(data) // 2 - 8)
        path.write_bytes(data)
    for _ in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = ss.open(lake.location, on_stale="ignore").scan("id >= 100 AND s = 'k101'")
            found = _each(lambda number, plan=plan: plan.to_table().to_pylist())
        assert found == [[{"id": 101, "s": "k101"}]] * THREADS
        assert len(plan.damaged) == len(set(plan.damaged)) > 0


_AFTER_THE_MAIN_THREAD = """
import atexit, sys, threading
import pyarrow as pa
import skipstone as ss
from faulty_object_store import Twin, twin_stores

def work():
    for uri in (sys.argv[1], "s3://far/lake"):
        table = ss.create(uri, schema=pa.schema([("n", pa.int64())]))
        for n in range(3):
            with table.transaction() as tx:
                tx.write(pa.table({"n": [n]}))
        table.create_index("n", kind="secondary")
        table = ss.open(uri)
        print(table.scan("n > 0").count(), table.scan("n % 2 = 0").to_table().num_rows, table.history().num_rows)

def late():
    threading.main_thread().join()
    work()

buckets = twin_stores(far=Twin())
buckets.__enter__()
if sys.argv[2] == "thread":
    threading.Thread(target=late).start()
else:
    atexit.register(work)
"""


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("when", ["thread", "exit"])
def test_what_is_done_after_the_main_thread_ended(tmp_path: Path, when: str) -> None:
    """No pool takes work any more then: threads that outlive it, and handlers of its exit, work without."""
    pytest.importorskip("obstore", reason="object stores need obstore: pip install 'skipstone[cloud]'")
    support = str(Path(__file__).parents[1] / "support")
    command = [sys.executable, "-c", _AFTER_THE_MAIN_THREAD, str(tmp_path / "lake"), when]
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": support}, capture_output=True, text=True, timeout=LONG_S
    )
    assert (ended.stdout, ended.stderr) == ("2 2 5\n" * 2, "")


def test_no_value_is_worked_out_under_a_lock_of_its_class() -> None:
    """`functools.cached_property` holds one; see `caching`."""
    root = Path(ss.__file__).parent
    using = re.compile(r"^(from functools import .*\bcached_property\b|.*functools\.cached_property\()", re.MULTILINE)
    rooms = ("engine", "hfile_like", "bloom", "spark_adapter", "commands")
    files = [path for room in rooms for path in (root / room).rglob("*.py")]
    found = {path.relative_to(root).as_posix() for path in files if using.search(path.read_text(encoding="utf-8"))}
    assert len(files) > 200 and found == set()


def test_what_threads_work_out_at_once_is_what_the_first_published() -> None:
    meeting = threading.Barrier(THREADS)

    class Thing:
        """It has a value."""

        @cached_property
        def value(self) -> object:
            """The value."""
            meeting.wait(LONG_S)
            return object()

    thing = Thing()
    assert len(set(_each(lambda number: thing.value))) == 1
    assert thing.value is thing.value and Thing.value.__doc__ == "The value."
