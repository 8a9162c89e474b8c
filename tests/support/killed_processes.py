"""Processes that die of SIGKILL while they change a table, and what each leaves:

    python killed_processes.py KILLS [--seed 1] [--kinds local,delta,s3]

A process acts on a lake (`remote_lake`), and dies before, within or after one of its calls to the storage, or some time
after it began. Another process then checks: the table opens, `verify` finds nothing, every row whose commit was
acknowledged is there once and none that was half written, filters and secondary indexes find the rows, older versions
are as they were, the next commit works, and a clean leaves nothing of the dead. Then the next process acts on the same
lake. Prints a line for each thing that must not be, and at its end the figures as JSON.

The process in the middle touches no storage and starts no thread: it loads the modules and forks.
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
LATE_CALLS = 10  # so many calls to the storage most actions make at most
CHANGES = ("create", "put", "put_if_absent", "delete")
Tell = Callable[..., None]


class Lake:
    """A lake in a folder or a bucket, and what changes it. `new` is the first number that nobody has tried to write."""

    acts = tuple(name for name in remote_lake.ACTIONS if name != "read")

    def __init__(self, root: str, options: dict[str, str]):
        self.root, self.options = root, options

    def open(self, **which: Any) -> ss.Table:
        return ss.open(self.root, storage_options=self.options or None, **which)

    def begin(self) -> None:
        remote_lake.begin(self.root, self.options or None)

    def act(self, table: ss.Table, name: str, is_first: bool, new: int) -> set[int]:
        """Change the table; return the numbers that it is to have."""
        if is_first:
            act, after = remote_lake.ACTIONS[name]
            act(table)
            return after
        self.add(table, new)
        return set(range(new, new + 20))

    def expected(self, name: str, is_first: bool, before: set[int], new: int) -> list[set[int]]:
        """What the lake may contain if the process that did that died: what it had, or what it was to have."""
        return [before, remote_lake.ACTIONS[name][1] if is_first else before | set(range(new, new + 20))]

    def add(self, table: ss.Table, new: int) -> None:
        """Commit twenty numbers."""
        remote_lake.write(table, range(new, new + 20))

    def follow(self, table: ss.Table) -> None:
        """Take in what others committed."""


class Delta(Lake):
    """A Delta table, which deltalake changes, and an index that follows it. What the log contains is the truth."""

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


# -- the one that dies -------------------------------------------------------------------------------------------------


class Death:
    """Kills this process before, within or after its call number `at` that changes a storage; within is when a file is
    written and has no name yet."""

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
        if self._is_inside:  # a call that another makes
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


def victim(lake: Lake, name: str, is_first: bool, new: int, death: Death, tell: Tell) -> None:
    table = lake.open()
    death.watch(LocalStorage)
    death.watch(ObjectStorage)
    tell("ready")
    try:
        lake.act(table, name, is_first, new)
    except ss.SkipstoneError as error:
        tell("finding", f"{name} was refused: {type(error).__name__}: {error}")
    tell("done", table.version)


# -- the one that looks ------------------------------------------------------------------------------------------------


def check(lake: Lake, told: dict, tell: Tell) -> None:
    """Everything that must be. `told`: what was done, and was acknowledged or not; what was seen before."""
    name, is_first, new = told["done"]
    allowed = lake.expected(name, is_first, told["numbers"], new)
    allowed = [numbers | told["more"] for numbers in (allowed[-1:] if told["is_acknowledged"] else allowed)]
    new += 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("default", category=DeprecationWarning)
        for text in ("not indexed", "no statistics", "(?s).*changed since the last sync"):
            warnings.filterwarnings("ignore", text)
        table = lake.open()
        if table.version < told["version"]:
            tell("finding", f"version {told['version']} was acknowledged, and {table.version} is the latest")
        lake.follow(table)
        found = _numbers(table, tell)
        if found not in allowed:
            wanted = allowed[-1]
            missing, more = sorted(wanted - found)[:9], sorted(found - wanted)[:9]
            tell("finding", f"version {table.version}: numbers {missing} are missing, {more} are more")
        readable = set(readable_versions(table))
        for version, numbers in told["versions"].items():
            if version in readable and remote_lake.numbers(lake.open(version=version)) != numbers:
                tell("finding", f"version {version} is not as it was")
            tell("compared")
        lake.add(table, new)
        after = _numbers(lake.open(), tell)
        if after != found | set(range(new, new + 20)):
            tell("finding", "the next commit did not add its numbers")
        if told["is_cleaned"]:
            for finding in recovered(lake.open()):
                tell("finding", f"after a clean: {finding}")
            if _numbers(lake.open(), tell) != after:
                tell("finding", "a clean changed the rows")
    tell("state", sorted(after), lake.open().version)


def _numbers(table: ss.Table, tell: Tell) -> set[int]:
    """The numbers of a table, each once; each index finds them."""
    for finding in table.verify(deep=True):
        tell("finding", f"verify: {finding}")
    found = remote_lake.numbers(table)
    some = sorted(found)[:: max(1, len(found) // 2)]
    for where, count in [*((f"id = 'k{i}'", 1) for i in some), *((f"n = {i}", 1) for i in some), ("n = -5", 0)]:
        if table.scan(where).count() != count or table.scan(where).to_table().num_rows != count:
            tell("finding", f"{where} does not give {count} rows")
        tell("compared")
    return found


# -- the one in the middle ---------------------------------------------------------------------------------------------


def forked(work: Callable[[Tell], None], kill_after_s: float | None = None) -> tuple[list[list], int]:
    """Runs `work(tell)` in a process of its own, killed some time after it said that it is ready. Gives what it told,
    and how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            work(lambda *told: os.write(writing, (json.dumps(told) + "\n").encode()) and None)
            status = 0
        except BaseException:
            os.write(writing, (json.dumps(["finding", traceback.format_exc()[-1500:]]) + "\n").encode())
        finally:
            os._exit(status)
    os.close(writing)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(SECONDS_MAX)
    lines = []
    with os.fdopen(reading) as stream:
        for line in stream:
            lines.append(json.loads(line))
            if lines[-1] == ["ready"] and kill_after_s is not None:
                signal.setitimer(signal.ITIMER_REAL, kill_after_s)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return lines, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Run:
    """Kills, their lakes, and the figures. `lie`: what the check must find in a lake, to try the check itself."""

    def __init__(self, seed: int):
        self.random, self.lie = random.Random(seed), ""
        self.figures: Counter[str] = Counter()
        self.comparisons = 0
        self.actions: Counter[str] = Counter()
        self.findings: list[str] = []

    def kill_some(self, lake: Lake, count: int) -> None:
        self._note("begin", forked(lambda tell: lake.begin())[0])
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
        lines, status = forked(lambda tell: victim(lake, name, is_first, new, death, tell), delay)
        where = f"{type(lake).__name__}, {name} killed {f'{point[0]} call {point[1]}' if delay is None else 'later'}"
        self._note(where, lines)
        done = [line for line in lines if line[0] == "done"]
        self.figures["kills" if status == -signal.SIGKILL else "not killed"] += 1
        self.actions[name if is_first or isinstance(lake, Delta) else "write"] += 1
        if self.lie == "left":
            left = Path(lake.root) / ".skipstone/runs/00/{'0' * 32}-left.sbf"
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(b"")
        told = {
            **state,
            "done": (name, is_first, new),
            "is_acknowledged": bool(done) or self.lie == "acknowledged",
            "more": {10**6} if self.lie == "acknowledged" else set(),
            "version": done[-1][1] if done else state["version"],
            "is_cleaned": is_last or self.lie == "left",
        }
        lines, status = forked(lambda tell: check(lake, told, tell))
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
    """What a lake is before anybody was killed."""

    def look(tell: Tell) -> None:
        table = lake.open()
        for version in range(1, table.version + 1):
            tell(version, sorted(remote_lake.numbers(lake.open(version=version))))

    versions = {version: set(numbers) for version, numbers in forked(look)[0]}
    return {"numbers": versions[max(versions)], "version": max(versions), "versions": versions, "new": 1_000}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="local,local,delta")
    parser.add_argument("--lies", default="", help="acknowledged,left: one a lake")
    asked = parser.parse_args()
    timeline.VERSIONS_A_FOLDER = 5  # type: ignore[misc]  # so that folders end
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kinds, lies = asked.kinds.split(","), asked.lies.split(",")
    kills_a_lake = min(KILLS_A_LAKE, -(-asked.kills // len(kinds)))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skipstone-kills-")))
        options, bucket = {}, ""
        load_all(*(["deltalake"] if "delta" in kinds else []))
        if "s3" in kinds:
            import seaweed_server

            (folder / "server").mkdir()
            server = stack.enter_context(seaweed_server.running(folder / "server"))
            options, bucket = server.options, server.bucket
        run, printed, lakes = Run(asked.seed), 0, 0
        with contextlib.suppress(KeyboardInterrupt):  # what was tried until then counts
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
