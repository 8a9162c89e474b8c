"""Processes that die of SIGKILL while they change a table:

    python killed_processes.py KILLS [--seed 1] [--kinds local,delta,s3]

A process acts on a lake (`remote_lake`) and dies before, within or after one of its calls to the storage, or some time
after it began. Another process then checks the table: it opens, `verify` finds nothing, it contains every acknowledged
row once and no row of an incomplete commit, filters and secondary indexes find the rows, older versions did not change,
the next commit works, and a clean removes all files of the dead process. Then the next process acts on the same lake.
The program prints a line for each finding, and at its end the figures as JSON.

The main process uses no storage and starts no thread: it loads the modules and forks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import remote_lake
import skipstone as ss
from loaded_modules import load_all
from skipstone.engine.state import timeline
from skipstone.engine.storage.local import LocalStorage
from skipstone.engine.storage.object_store import ObjectStorage
from table_recovery import readable_versions, recovered

KILLS_A_LAKE = 4
SECONDS_MAX = 90
LATE_CALLS = 10  # calls to the storage of most actions
CHANGES = ("create", "put", "put_if_absent", "delete")
Report = Callable[..., None]


class Lake:
    """A lake in a folder or a bucket, and what changes it. `new` is the first number that was never written."""

    acts = tuple(name for name in remote_lake.ACTIONS if name != "read")

    def __init__(self, root: str, options: dict[str, str]):
        self.root, self.options = root, options

    def open(self, **which: Any) -> ss.Table:
        return ss.open(self.root, storage_options=self.options or None, **which)

    def begin(self) -> None:
        remote_lake.begin(self.root, self.options or None)

    def act(self, table: ss.Table, name: str, is_first: bool, new: int) -> set[int]:
        """Change the table; return the numbers that it then contains."""
        if is_first:
            act, after = remote_lake.ACTIONS[name]
            act(table)
            return after
        self.add(table, new)
        return set(range(new, new + 20))

    def expected(self, name: str, is_first: bool, before: set[int], new: int) -> list[set[int]]:
        """What the lake may contain if that process died: the numbers before or after the change."""
        return [before, remote_lake.ACTIONS[name][1] if is_first else before | set(range(new, new + 20))]

    def add(self, table: ss.Table, new: int) -> None:
        """Commit twenty numbers."""
        remote_lake.write(table, range(new, new + 20))

    def follow(self, table: ss.Table) -> None:
        """Follow the commits of other writers."""


class Delta(Lake):
    """A Delta table that deltalake changes, and an index that follows its log."""

    acts = ("append", "delete")

    def begin(self) -> None:
        self._append(range(40))
        table = ss.create(self.root, source="delta")
        table.create_index("id", kind="bloom")
        table.create_index("n", kind="secondary")

    def act(self, table: ss.Table, name: str, is_first: bool, new: int) -> set[int]:
        if name == "append":
            self._append(range(new, new + 20))
        else:
            self._log().delete("n % 7 = 3")
        table.sync(refresh=True)
        return self.theirs()

    def expected(self, name: str, is_first: bool, before: set[int], new: int) -> list[set[int]]:
        return [self.theirs()]

    def add(self, table: ss.Table, new: int) -> None:
        self._append(range(new, new + 20))
        table.sync()

    def follow(self, table: ss.Table) -> None:
        table.sync()

    def theirs(self) -> set[int]:
        return set(self._log().to_pyarrow_table(columns=["n"]).column("n").to_pylist())

    def _append(self, numbers: range) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.root, remote_lake.rows(numbers), mode="append", partition_by=["day"])

    def _log(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.root)


# -- the process that dies ---------------------------------------------------------------------------------------------


class Death:
    """Kills this process before, within or after its `at`-th call that changes a storage. Within: a file is written and
    has no name yet."""

    def __init__(self, when: str, at: int):
        self._when, self._left, self._is_inside = when, at, False

    def watch(self, storage: type) -> None:
        for name in CHANGES:
            real = getattr(storage, name)
            setattr(storage, name, self._created(real) if name == "create" else self._called(real))

    def _called(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(storage: Any, *rest: Any, **options: Any) -> Any:
            with self._step():
                return real(storage, *rest, **options)

        return call

    def _created(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @contextlib.contextmanager
        def create(storage: Any, path: str) -> Iterator[Any]:
            with self._step() as is_due, real(storage, path) as file:
                yield file
                self._die(is_due and self._when == "within")

        return create

    @contextlib.contextmanager
    def _step(self) -> Iterator[bool]:
        if self._is_inside:  # a call within another
            yield False
            return
        self._left -= 1
        is_due = self._left == 0
        self._die(is_due and self._when == "before")
        self._is_inside = True
        try:
            yield is_due
        finally:
            self._is_inside = False
        self._die(is_due)

    def _die(self, is_due: bool) -> None:
        if is_due:
            os.kill(os.getpid(), signal.SIGKILL)


def victim(lake: Lake, name: str, is_first: bool, new: int, death: Death, report: Report) -> None:
    table = lake.open()
    death.watch(LocalStorage)
    death.watch(ObjectStorage)
    report("ready")
    try:
        lake.act(table, name, is_first, new)
    except ss.SkipstoneError as error:
        report("finding", f"{name} was refused: {type(error).__name__}: {error}")
    report("done", table.version)


# -- the process that checks -------------------------------------------------------------------------------------------


def check(lake: Lake, case: dict, report: Report) -> None:
    """Check the lake. `case`: the action, whether it was acknowledged, and the versions before it."""
    name, is_first, new = case["done"]
    allowed = lake.expected(name, is_first, case["numbers"], new)
    allowed = [numbers | case["more"] for numbers in (allowed[-1:] if case["is_acknowledged"] else allowed)]
    new += 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("default", category=DeprecationWarning)
        for text in ("not indexed", "no statistics", "(?s).*changed since the last sync"):
            warnings.filterwarnings("ignore", text)
        table = lake.open()
        if table.version < case["version"]:
            report("finding", f"version {case['version']} was acknowledged, and {table.version} is the latest")
        lake.follow(table)
        found = _numbers(table, report)
        if found not in allowed:
            wanted = allowed[-1]
            missing, more = sorted(wanted - found)[:9], sorted(found - wanted)[:9]
            report("finding", f"version {table.version}: numbers {missing} are missing, {more} are more")
        readable = set(readable_versions(table))
        for version, numbers in case["versions"].items():
            if version in readable and remote_lake.numbers(lake.open(version=version)) != numbers:
                report("finding", f"version {version} changed")
            report("compared")
        lake.add(table, new)
        after = _numbers(lake.open(), report)
        if after != found | set(range(new, new + 20)):
            report("finding", "the next commit did not add its numbers")
        if case["is_cleaned"]:
            for finding in recovered(lake.open()):
                report("finding", f"after a clean: {finding}")
            if _numbers(lake.open(), report) != after:
                report("finding", "a clean changed the rows")
    report("state", sorted(after), lake.open().version)


def _numbers(table: ss.Table, report: Report) -> set[int]:
    """Return the numbers of a table; each is there once, and each index finds them."""
    for finding in table.verify(deep=True):
        report("finding", f"verify: {finding}")
    found = remote_lake.numbers(table)
    some = sorted(found)[:: max(1, len(found) // 2)]
    for where, count in [*((f"id = 'k{i}'", 1) for i in some), *((f"n = {i}", 1) for i in some), ("n = -5", 0)]:
        if table.scan(where).count() != count or table.scan(where).to_table().num_rows != count:
            report("finding", f"{where} does not give {count} rows")
        report("compared")
    return found


# -- the main process --------------------------------------------------------------------------------------------------


def forked(work: Callable[[Report], None], kill_after_s: float | None = None) -> tuple[list[list], int]:
    """Run `work(report)` in another process, killed some time after it reported that it is ready. Return its reports
    and its status."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            work(lambda *line: os.write(writing, (json.dumps(line) + "\n").encode()) and None)
            status = 0
        except BaseException:
            os.write(writing, (json.dumps(["finding", traceback.format_exc()[-1500:]]) + "\n").encode())
        finally:
            os._exit(status)
    os.close(writing)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(SECONDS_MAX)
    lines = []
    try:
        with os.fdopen(reading) as stream:
            for line in stream:
                lines.append(json.loads(line))
                if lines[-1] == ["ready"] and kill_after_s is not None:
                    signal.setitimer(signal.ITIMER_REAL, kill_after_s)
    except KeyboardInterrupt:  # or the child would write into a folder that is being removed
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _, status = os.waitpid(child, 0)
    return lines, os.waitstatus_to_exitcode(status)


class Run:
    """Kills, their lakes, and the figures. `lie`: a false report or a file left behind, which the check must find."""

    def __init__(self, seed: int):
        self.random, self.lie = random.Random(seed), ""
        self.figures: Counter[str] = Counter()
        self.comparisons = 0
        self.actions: Counter[str] = Counter()
        self.findings: list[str] = []

    def kill_some(self, lake: Lake, count: int) -> None:
        self._note("begin", forked(lambda report: lake.begin())[0])
        state = _seen(lake)
        for turn in range(count):
            after = self._kill(lake, state, is_first=turn == 0, is_last=turn == count - 1)
            if after is None:
                return
            state = after

    def _kill(self, lake: Lake, state: dict, *, is_first: bool, is_last: bool) -> dict | None:
        name, new, chance = self.random.choice(lake.acts), state["new"], self.random
        point = chance.choice(["before", "within", "after"]), chance.randint(1, LATE_CALLS)
        delay = chance.uniform(0, 0.3) if chance.random() < 0.25 else None
        death = Death(*point) if delay is None else Death("never", 0)
        lines, status = forked(lambda report: victim(lake, name, is_first, new, death, report), delay)
        where = f"{type(lake).__name__}, {name} killed {f'{point[0]} call {point[1]}' if delay is None else 'later'}"
        self._note(where, lines)
        done = [line for line in lines if line[0] == "done"]
        self.figures["kills" if status == -signal.SIGKILL else "not killed"] += 1
        self.actions[name if is_first or isinstance(lake, Delta) else "write"] += 1
        if self.lie == "left":
            left = Path(lake.root) / ".skipstone/runs/00/{'0' * 32}-left.sbf"
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(b"")
        case = {
            **state,
            "done": (name, is_first, new),
            "is_acknowledged": bool(done) or self.lie == "acknowledged",
            "more": {10**6} if self.lie == "acknowledged" else set(),
            "version": done[-1][1] if done else state["version"],
            "is_cleaned": is_last or self.lie == "left",
        }
        lines, status = forked(lambda report: check(lake, case, report))
        self._note(where, lines)
        self.comparisons += sum(line[0] == "compared" for line in lines)
        if not lines or lines[-1][0] != "state":
            self.findings.append(f"{where}: the check ended with {status}")
            return None
        _, numbers, version = lines[-1]
        versions = state["versions"] | {version: set(numbers)}
        return {"numbers": set(numbers), "version": version, "versions": versions, "new": new + 40}

    def _note(self, where: str, lines: list[list]) -> None:
        self.findings += [f"{where}: {line[1]}" for line in lines if line[0] == "finding"]


def _seen(lake: Lake) -> dict:
    """The versions of a lake before the first kill."""

    def look(report: Report) -> None:
        table = lake.open()
        for version in range(1, table.version + 1):
            report(version, sorted(remote_lake.numbers(lake.open(version=version))))

    versions = {version: set(numbers) for version, numbers in forked(look)[0]}
    return {"numbers": versions[max(versions)], "version": max(versions), "versions": versions, "new": 1_000}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="local,local,delta")
    parser.add_argument("--lies", default="", help="acknowledged,left: one per lake")
    asked = parser.parse_args()
    timeline.VERSIONS_A_FOLDER = 5  # type: ignore[misc]  # so that folders end
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kinds, lies = asked.kinds.split(","), asked.lies.split(",")
    kills_a_lake = min(KILLS_A_LAKE, -(-asked.kills // len(kinds)))
    run, printed, lakes = Run(asked.seed), 0, 0
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:  # the kills until then count
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skipstone-kills-")))
        options, bucket = {}, ""
        load_all(*(["deltalake"] if "delta" in kinds else []))
        if "s3" in kinds:
            import seaweed_server

            (folder / "server").mkdir()
            server = stack.enter_context(seaweed_server.running(folder / "server"))
            options, bucket = server.options, server.bucket
        trials_max = len(lies) if asked.lies else 20 + 2 * asked.kills
        while run.figures["kills"] < asked.kills and run.figures.total() < trials_max:
            kind, run.lie, lakes = kinds[lakes % len(kinds)], lies[lakes % len(lies)], lakes + 1
            (folder / str(lakes)).mkdir()
            root = f"s3://{bucket}/kills-{os.getpid()}-{lakes}" if kind == "s3" else str(folder / str(lakes))
            lake = (Delta if kind == "delta" else Lake)(root, options if kind == "s3" else {})
            run.kill_some(lake, min(kills_a_lake, asked.kills - run.figures["kills"]))
            for finding in run.findings[printed:]:
                print(finding.replace("\n", " | "), flush=True)
            printed = len(run.findings)
    counts = {"comparisons": run.comparisons, "findings": len(run.findings), "in": run.actions}
    print(json.dumps({**run.figures, **counts}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
