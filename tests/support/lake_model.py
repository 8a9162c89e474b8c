"""A table as plain dicts: what each version must hold, whatever was done to it. Used by the state machine.

Nothing here knows how the engine does it: a version is a dict of files, a file is its rows, and what an action must
lead to is worked out from those and from what lies on the disk.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), ("p", pa.int32())])
UNDOABLE = ("commit", "replace", "sync", "rollback", "restore")
Row = tuple[int | None, str, int]
Token = tuple[int, int]  # size in bytes, time in nanoseconds

PREDICATES: dict[str, Callable[[Row], bool]] = {
    "a = 3": lambda r: r[0] == 3,
    "a < 2 AND s = 'y'": lambda r: r[0] is not None and r[0] < 2 and r[1] == "y",
    "s = 'x'": lambda r: r[1] == "x",
    "s IN ('y', 'q') OR a IS NULL": lambda r: r[1] in ("y", "q") or r[0] is None,
    "p = 1 AND NOT (a <= 4)": lambda r: r[2] == 1 and r[0] is not None and r[0] > 4,
    "a IS NOT NULL": lambda r: r[0] is not None,
}


@dataclass(frozen=True)
class Held:
    """A live file: the id that it has, and which bytes it is."""

    number: int
    token: Token


Live = dict[str, Held]  # by path


@dataclass
class Model:
    """versions: what each holds; actions: what made it; rows: those of every file that ever was, by path and token;
    gone: what was taken out by us; given: the file of every id that was given."""

    root: Path
    versions: dict[int, Live] = field(default_factory=dict)
    actions: dict[int, str] = field(default_factory=dict)
    rows: dict[tuple[str, Token], list[Row]] = field(default_factory=dict)
    gone: set[tuple[str, Token]] = field(default_factory=set)
    given: dict[int, tuple[str, Token]] = field(default_factory=dict)
    cleaned: set[int] = field(default_factory=set)
    savepoints: dict[str, int] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        return max(self.versions)

    @property
    def live(self) -> Live:
        return self.versions[self.latest]

    def token(self, path: str) -> Token | None:
        """What lies on the disk under a path; None where nothing does."""
        try:
            found = os.stat(self.root / path)
        except FileNotFoundError:
            return None
        return found.st_size, found.st_mtime_ns

    def is_there(self, path: str, held: Held) -> bool:
        return self.token(path) == held.token

    def put_file(self, path: str, rows: list[Row]) -> None:
        """Writes a file as somebody else would, other than any before it."""
        target = self.root / path
        target.parent.mkdir(exist_ok=True)
        columns = {"a": pa.array([r[0] for r in rows], pa.int64()), "s": [r[1] for r in rows]}
        pq.write_table(pa.table(columns), target, row_group_size=2)
        token = self.token(path)
        while token is None or (path, token) in self.rows:
            os.utime(target, ns=(0, target.stat().st_mtime_ns + 1000))
            token = self.token(path)
        self.rows[(path, token)] = rows

    # -- what must come of an action ----------------------------------------------------------------------------------

    def record(self, table: ss.Table, live: dict[str, Token]) -> None:
        """Takes the versions that an action made, which hold these files. Ids of files that stayed, or returned, are as
        they were; the others are new."""
        before = self.live if self.versions else {}
        returns = table.version > 1 and table.handle.timeline.read(table.version).action in ("rollback", "restore")
        found = held_by(self, table)
        assert {path: held.token for path, held in found.items()} == live
        for path, held in found.items():
            if path in before and before[path].token == held.token and held.number == before[path].number:
                continue
            known = self.given.get(held.number)
            assert known is None or (returns and known == (path, held.token)), f"{path}: its id was given before"
            self.given[held.number] = path, held.token
        self.gone |= {(path, held.token) for path, held in before.items() if found.get(path) != held}
        self.gone -= {(path, held.token) for path, held in found.items()}
        first = self.latest + 1 if self.versions else 1
        for version in range(first, table.version + 1):
            self.versions[version] = found
            self.actions[version] = table.handle.timeline.find(version).action

    def tokens(self, live: Live) -> dict[str, Token]:
        return {path: held.token for path, held in live.items()}

    def after_sync(self) -> dict[str, Token]:
        """What the directory shows, less what was taken out, and what a transaction of ours wrote and left."""
        shown = {}
        for target in self.root.glob("p=*/*.parquet"):
            path = target.relative_to(self.root).as_posix()
            token = self.token(path)
            assert token is not None
            is_ours = target.name.startswith("part-")
            if path in self.live or ((path, token) not in self.gone and not is_ours):
                shown[path] = token
        return shown

    def after_rollback(self, n: int) -> dict[str, Token] | None:
        """None where it must be refused."""
        undone = {self.actions.get(version) for version in range(self.latest - n + 1, self.latest + 1)}
        return self.after_restore(self.latest - n) if n < self.latest and undone <= {*UNDOABLE} else None

    def after_restore(self, version: int) -> dict[str, Token] | None:
        if version in self.cleaned:
            return None
        wanted = self.tokens(self.versions[version])
        now = self.tokens(self.live)
        back = {path: token for path, token in wanted.items() if now.get(path) != token}
        return wanted if all(self.token(path) == token for path, token in back.items()) else None

    # -- what must be seen --------------------------------------------------------------------------------------------

    def expected(self, version: int, matches: Callable[[Row], bool]) -> Counter:
        files = ((path, held.token) for path, held in self.versions[version].items())
        return Counter(row for file in files for row in self.rows[file] if matches(row))

    def check(self, table: ss.Table, where: str) -> None:
        """One version through one handle: files, totals, the rows of a predicate."""
        live = self.versions[table.version]
        matches = PREDICATES[where]
        if held_by(self, table) != live:
            raise AssertionError(f"version {table.version}: {held_by(self, table)}, not {live}")
        totals = table.handle.instant.totals
        rows = sum(len(self.rows[(path, held.token)]) for path, held in live.items())
        assert (totals["files"], totals["rows"]) == (len(live), rows)
        assert sum(table.partitions().column("row_count").to_pylist()) == rows
        assert sum(table.partitions().column("file_count").to_pylist()) == len(live)
        plan = table.scan(where, columns=["a", "s", "p"])
        kept = set(plan.files().column("path").to_pylist())
        assert kept >= {p for p, h in live.items() if any(map(matches, self.rows[(p, h.token)]))}, where
        expected = self.expected(table.version, matches)
        try:
            rows = plan.to_table().to_pylist()
            count = plan.count()
        except ss.NotReadableError:
            assert kept & {path for path, held in live.items() if not self.is_there(path, held)}
        else:
            assert Counter(tuple(row.values()) for row in rows) == expected, where
            assert count == sum(expected.values()), where

    def check_latest(self, table: ss.Table, where: str, *, deep: bool = False) -> None:
        """The newest version, and what is true of all of them together."""
        assert table.version == self.latest
        self.check(table, where)
        history = [row for row in table.history().to_pylist() if row["version"] is not None]
        assert [row["version"] for row in history] == list(range(1, self.latest + 1))
        assert [row["action"] for row in history] == [self.actions[v] for v in range(1, self.latest + 1)]
        lost = {path for path, held in self.live.items() if not self.is_there(path, held)}
        assert {finding.path for finding in table.verify(deep)} == lost
        names = table.savepoints().to_pylist()
        assert {row["name"]: row["version"] for row in names} == self.savepoints


def held_by(model: Model, table: ss.Table) -> Live:
    """The live files of a handle's version, as it tells of them."""
    rows = table.handle.snapshot.files().select(["path", "file_id", "size_bytes", "modified_ns"]).to_pylist()
    return {row["path"]: Held(row["file_id"], (row["size_bytes"], row["modified_ns"])) for row in rows}
