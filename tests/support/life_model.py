"""A table as plain Python: what each version must contain, whatever was done to it. Used by test_life_of_a_table.py.

A version is a dict of files and a tuple of columns. The content of a file is what pyarrow reads; which of its names are
columns of the table was settled when it was added. What an action must lead to is worked out from these and from what
is on the disk: nothing here uses the engine, except to ask a version which files it has.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import predicate_strategies as base
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from oracle import Groups

UNDOABLE = ("commit", "replace", "sync", "rollback", "restore")
WIDER = {
    pa.int32(): pa.int64(),
    pa.float32(): pa.float64(),
    pa.string(): pa.large_string(),
    pa.decimal128(5, 2): pa.decimal128(10, 4),
    pa.timestamp("ms"): pa.timestamp("us"),
}
Token = tuple[int, int]  # size in bytes, time in nanoseconds


@dataclass(frozen=True)
class Held:
    """A live file: its id, and which bytes it is."""

    number: int
    token: Token


@dataclass(frozen=True)
class Column:
    """A column by identity."""

    uid: int
    name: str
    type: pa.DataType
    default: object = None


Live = dict[str, Held]  # by path
Columns = tuple[Column, ...]


@dataclass(frozen=True)
class Version:
    """What a version contains; `keys` are those of transactions that stay committed once."""

    live: Live
    columns: Columns
    action: str
    keys: frozenset[str]


@dataclass
class Model:
    """See the head of this file.

    contents    the row groups of every file that ever was, under its own names
    bound       {file id: {name in the file: the column that it is}}
    names       every name that a column ever had
    gone        files that we removed
    given       the file of every id that was given
    """

    root: Path
    is_partitioned: bool
    versions: dict[int, Version] = field(default_factory=dict)
    contents: dict[tuple[str, Token], list[pa.Table]] = field(default_factory=dict)
    bound: dict[int, dict[str, int]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    gone: set[tuple[str, Token]] = field(default_factory=set)
    given: dict[int, tuple[str, Token]] = field(default_factory=dict)
    cleaned: set[int] = field(default_factory=set)
    savepoints: dict[str, int] = field(default_factory=dict)
    uids: itertools.count = field(default_factory=itertools.count)

    @property
    def latest(self) -> int:
        return max(self.versions)

    @property
    def now(self) -> Version:
        return self.versions[self.latest]

    @property
    def tokens(self) -> dict[str, Token]:
        """The live files of the newest version."""
        return {path: held.token for path, held in self.now.live.items()}

    # -- files --------------------------------------------------------------------------------------------------------

    def token(self, path: str) -> Token | None:
        """What is on the disk under a path; None if nothing is."""
        try:
            found = os.stat(self.root / path)
        except FileNotFoundError:
            return None
        return found.st_size, found.st_mtime_ns

    def is_there(self, path: str, held: Held) -> bool:
        return self.token(path) == held.token and (path, held.token) in self.contents

    def lost(self, version: int) -> set[str]:
        """Files of a version that are not on the disk, or are others."""
        return {path for path, held in self.versions[version].live.items() if self.token(path) != held.token}

    def put_file(self, path: str, rows: pa.Table, **options: object) -> None:
        """Write a file as another writer does, different from every file before it."""
        target = self.root / path
        target.parent.mkdir(exist_ok=True)
        target.unlink(missing_ok=True)
        pq.write_table(rows, target, **options)
        while (path, self.token(path)) in self.contents:
            os.utime(target, ns=(0, target.stat().st_mtime_ns + 1000))
        self.note(path)

    def note(self, path: str) -> None:
        """Read a file that is new."""
        token = self.token(path)
        if token is not None and (path, token) not in self.contents:
            with pq.ParquetFile(self.root / path) as file:
                groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
            self.contents[(path, token)] = groups or [file.schema_arrow.empty_table()]

    def names_in(self, path: str, token: Token) -> list[str]:
        return self.contents[(path, token)][0].column_names

    def fits(self, path: str, token: Token, columns: Columns) -> bool:
        """Whether the columns may be read of a file: of their types, or of narrower ones."""
        types, schema = {column.name: column.type for column in columns}, self.contents[(path, token)][0].schema
        named = [(field.type, types[field.name]) for field in schema if field.name in types]
        return all(kind == wanted or WIDER.get(kind) == wanted for kind, wanted in named)

    def known_files(self, columns: Columns) -> list[str]:
        """Files on the disk that are not live, fit, and contain only what was a column, in the order of paths."""
        return sorted(
            path
            for path, token in self.contents
            if self.token(path) == token
            and path not in self.now.live
            and {*self.names_in(path, token)} <= self.names
            and self.fits(path, token, columns)
            and self.fits(path, token, self.now.columns)
        )

    def remove_misfits(self) -> None:
        """Remove files that a sync would quarantine, or widen a column for: they were put when columns were others."""
        for path, token in self.contents:
            if self.token(path) == token and path not in self.now.live and not self.fits(path, token, self.now.columns):
                (self.root / path).unlink()

    # -- what must come of an action ----------------------------------------------------------------------------------

    def without(self, version: int, paths: Iterable[str]) -> dict[str, Token] | None:
        """The live files less some of a handle's version; None if they are that no more."""
        seen = self.versions[version].live
        if any(self.now.live.get(path) != seen[path] for path in paths):
            return None
        return {path: token for path, token in self.tokens.items() if path not in paths}

    def after_sync(self) -> dict[str, Token]:
        """What the directory shows, less what was removed, and less what one of our transactions wrote and left."""
        shown = {}
        for target in self.root.glob("p=*/*.parquet" if self.is_partitioned else "*.parquet"):
            path = target.relative_to(self.root).as_posix()
            token = self.token(path)
            assert token is not None
            is_ours = target.name.startswith("part-")
            if path in self.now.live or ((path, token) not in self.gone and not is_ours):
                shown[path] = token
        return shown

    def columns_after(self, live: dict[str, Token]) -> Columns:
        """The columns after a sync that adopts them: names in files that no column ever had are columns from now on."""
        columns, names = list(self.now.columns), set(self.names)
        for path, token in sorted(live.items()):
            for name in self.names_in(path, token) if (path, token) in self.contents else ():
                if name not in names:
                    names.add(name)
                    columns.append(Column(next(self.uids), name, pa.int64()))
        return tuple(columns)

    def after_rollback(self, n: int) -> dict[str, Token] | None:
        """None if it must be refused."""
        undone = {self.versions[version].action for version in range(max(self.latest - n, 0) + 1, self.latest + 1)}
        return self.after_restore(self.latest - n) if n < self.latest and undone <= {*UNDOABLE} else None

    def after_restore(self, version: int) -> dict[str, Token] | None:
        """None if it must be refused."""
        if version in self.cleaned:
            return None
        wanted = {path: held.token for path, held in self.versions[version].live.items()}
        back = {path: token for path, token in wanted.items() if self.tokens.get(path) != token}
        return wanted if all(self.token(path) == token for path, token in back.items()) else None

    def record(
        self,
        live: dict[str, Token] | None,
        columns: Columns | None = None,
        written_as: Columns | None = None,
        keys: frozenset[str] | None = None,
    ) -> None:
        """Take the versions that an action made.

        Args:
            live: the files that the newest has. None if two acted: then what each version reports.
            columns: its columns, if they are others.
            written_as: what names in new files stand for, if the writer began before others changed the columns.
            keys: its keys, if they are others.
        """
        newest = ss.open(self.root)
        assert live is None or {path: held.token for path, held in held_by(newest).items()} == live
        self.cleaned = {v for low, high in newest.handle.instant.cleaned for v in range(low, high + 1)}
        before = self.now if self.versions else Version({}, (), "", frozenset())
        columns = before.columns if columns is None else columns
        self._adopt([column for column in columns if column.uid not in {c.uid for c in before.columns}])
        self.names |= {column.name for column in columns}
        for version in range(self.latest + 1 if self.versions else 1, newest.version + 1):
            action = newest.handle.timeline.find(version).action
            found = before.live
            if version not in self.cleaned:
                found = held_by(ss.open(self.root, version=version))
                self._take(before.live, found, written_as or columns, is_undo=action in ("rollback", "restore"))
            before = Version(found, columns, action, before.keys if keys is None else keys)
            self.versions[version] = before

    def _adopt(self, new: list[Column]) -> None:
        """Files contain a new column if nothing ever had its name."""
        for column in new:
            for number, (path, token) in self.given.items():
                if column.name not in self.names and column.name in self.names_in(path, token):
                    self.bound[number].setdefault(column.name, column.uid)

    def _take(self, before: Live, found: Live, columns: Columns, is_undo: bool) -> None:
        """Files that stayed, or returned, have the ids that they had; the others have new ones."""
        for path, held in found.items():
            if before.get(path) == held:
                continue
            known = self.given.get(held.number)
            assert known is None or (is_undo and known == (path, held.token)), f"{path}: its id was given before"
            earlier = [number for number, one in self.given.items() if one == (path, held.token)]
            if earlier and (is_undo or (path in before and before[path].token == held.token)):
                self.bound.setdefault(held.number, dict(self.bound[earlier[-1]]))  # it was bound to a column more
            self.given[held.number] = path, held.token
            if self.token(path) == held.token:
                self.note(path)
            names = self.names_in(path, held.token) if (path, held.token) in self.contents else []
            self.bound.setdefault(held.number, {c.name: c.uid for c in columns if c.name in names})
        self.gone |= {(path, held.token) for path, held in before.items() if found.get(path) != held}
        self.gone -= {(path, held.token) for path, held in found.items()}

    # -- what must be seen --------------------------------------------------------------------------------------------

    def fields(self, version: int) -> set[tuple[str, pa.DataType]]:
        found = {(c.name, c.type) for c in self.versions[version].columns}
        return found | ({("p", pa.int32())} if self.is_partitioned else set())

    def shown(self, version: int, schema: pa.Schema) -> dict[str, Groups]:
        """The rows of each file, by row group, as a version has them."""
        columns = {column.name: column for column in self.versions[version].columns}
        found: dict[str, Groups] = {}
        for path, held in self.versions[version].live.items():
            names = {uid: name for name, uid in self.bound[held.number].items()}
            found[path] = [
                base.rows_of(
                    pa.table([self._values(path, group, f, columns.get(f.name), names) for f in schema], schema=schema)
                )
                for group in self.contents[(path, held.token)]
            ]
        return found

    def _values(
        self, path: str, group: pa.Table, wanted: pa.Field, column: Column | None, names: dict[int, str]
    ) -> pa.Array | pa.ChunkedArray:
        if column is None:
            return array_of([int(path[len("p=")])] * group.num_rows, wanted.type)
        if column.uid in names:
            return group.column(names[column.uid]).cast(wanted.type)
        return array_of([column.default] * group.num_rows, wanted.type)

    def row_count(self, version: int) -> int:
        files = self.versions[version].live.items()
        return sum(group.num_rows for path, held in files for group in self.contents[(path, held.token)])


def held_by(table: ss.Table) -> Live:
    """The live files of a handle's version, as it reports them."""
    rows = table.handle.snapshot.files().select(["path", "file_id", "size_bytes", "modified_ns"]).to_pylist()
    return {row["path"]: Held(row["file_id"], (row["size_bytes"], row["modified_ns"])) for row in rows}


def array_of(values: list, kind: pa.DataType) -> pa.Array:
    """An array of any type; pyarrow 20 and older take the values of an extension type in storage alone."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)
