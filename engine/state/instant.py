"""An instant: one action on the timeline, and with it the whole state of the table at that version.

An instant is one JSON document on one line, with its checksum on the next line, published under its version's name if
that name is free. It lists *everything* that a reader needs: the schema, every run of the manifest and of each index,
the coverage of each index, and the id of the transaction that created it. So opening any version is one small read, and
a file that no instant names is never trusted.

    version          int, 1 and up; never used twice
    previous         [version, checksum] of the instant that it follows; the checksum is of that one's sealed text. null
                     for the first
    transaction      id of the transaction that created it (a commit that gets an ambiguous error compares it)
    action           create | commit | replace | index | alter | ...
    time_us          microseconds since 1970 UTC; never goes back, except after one that was in the storage's future
    source           {"kind": "directory" | "delta" | "iceberg" | "hudi", "version": the external log's version or
                     null}; with a log also "position", "table", "mark" (see `lakes.table_format.LogState`) and "keys":
                     {the log's key of a column: its field id}; with a mapping of names (Iceberg) also "mapping":
                     {JSON path of names in a file without field ids: the log's key of that field}; for Iceberg
                     also "last_id": the greatest field id that any file may have; a directory has "folders": {path:
                     its modification time in ns when the last sync listed it, 0 if it was too recent to prove
                     anything}, and "marked": whether the directory has `lakes/table_marker.py`'s file
    schema           the table's Arrow schema, partition columns included (base64 of Arrow's IPC form)
    partitioning     names of the partition columns, outermost first
    fields           {name: id} of the top-level columns: a rename keeps the id, and an id is never used twice
    retired          names that top-level columns no longer have, or that passed to another column: data that files
                     contain under them is never adopted
    defaults         the value of each column in every row of files that lack it: one row of Arrow's IPC stream
                     (base64), its columns named by field ids; null if every column defaults to null
    columns          [{"id", "path"}]: leaves that an index may cover; an id is never reused
    derived          [{"id", "field", "expression"}]: columns that indexes cover and no file stores, with ids from the
                     sequence of `columns`: the elements of the list column with the id `field`, or an expression
                     {"node", "columns"} (`coverage.py`); the other of the two is null
    file_schemas     [{"schema", "fields": {physical name: field id}, "columns": {physical path: column id},
                     "is_declared", "nested": [{"path", "name"}]}]: how to read the names in a file. Each file stores a
                     position in this list, which only grows. `nested`, if there are any: fields within columns that
                     have another name in the table, or (null) are not the table's field of that name
    next             high-water marks of ids: sequence, partition, field, column, index
    manifest         runs, oldest first: partitions and files, with tombstones
    indexes          definitions, runs and coverage
    totals           live files, rows, bytes; `plain`: base files that have no group, no deletes and no commit
    summary          what this action did: files_added, files_removed, rows_changed, bytes_changed, ...
    quarantined      files that cannot be read, or do not fit the table: [{"path", "reason", "rows": their number, null
                     if it is not known}]. If one replaced a live file, the live file stays listed, and is unreadable
    fenced           transactions that this instant abandons: none of them may publish any more
    cleaned          [[first, last]]: versions that can no longer be read, because what only they named is deleted
    commit_states    {commit: inflight | failed | rolled_back}: states of commits that wrote logs and bases; one that is
                     not named is completed, or unknown
    savepoints       {name: version}: named versions, which `clean` keeps
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa

from ...base.caching import cached_property
from ...errors import InvalidArgumentError, NotATableError, StorageError
from .coverage import DerivedColumn, IndexState, Run, distinct_name
from .fields import INSTANT_BYTES_MAX, FieldError, check_size

INSTANT_FORMAT = 1  # its guarantees: "Format 1" in LAYOUT.md
REQUIRES_MOVED = "moved entries"  # a coverage has `moved`: a reader that ignores it would lose rows
# A writer commits with a clock that is at most five minutes ahead of the storage's (`clock`). If an instant's own time
# is further ahead, with a little margin for stores whose times are in seconds, it is not trusted.
_AHEAD_US_MAX = 6 * 60 * 1_000_000

COMPLETED, INFLIGHT, FAILED, ROLLED_BACK = "completed", "inflight", "failed", "rolled_back"
COMMIT_STATES = (COMPLETED, INFLIGHT, FAILED, ROLLED_BACK)


@dataclass(frozen=True)
class FileSchema:
    """A physical schema, and the columns of the table that it contains: `fields` by name, `columns` leaf by leaf. A
    column that the table did not have when the file was bound is in neither. If `is_declared`, no process has opened
    the files: a caller or a log declared them, in the table's names and types at that time. `nested`: the table's names
    of fields within columns, if files have others (`parquet/leaves.py`)."""

    schema: pa.Schema
    fields: dict[str, int]
    columns: dict[str, int]
    is_declared: bool = False
    nested: Mapping[tuple[str, ...], str | None] = field(default_factory=dict)

    def name_of(self, field_id: int) -> str | None:
        """Return the physical name of a top-level column, None if files of this schema do not have it."""
        return next((name for name, number in self.fields.items() if number == field_id), None)

    def path_of(self, column_id: int) -> str | None:
        """Return the physical dotted path of a column, None if files of this schema do not have it."""
        return next((path for path, number in self.columns.items() if number == column_id), None)


@dataclass(frozen=True)
class Instant:
    """One version of a table; the fields are described at the head of this file.

    modified_us    when its file was written, by the storage's clock; None if it was not read from a file
    is_shrunk      it was cleaned, and contains only what history and writers need
    """

    version: int
    transaction: str
    action: str
    time_us: int
    table_id: str
    source: dict
    schema: pa.Schema
    partitioning: tuple[str, ...]
    fields: dict[str, int]
    columns: dict[str, int]
    file_schemas: tuple[FileSchema, ...]
    next: dict[str, int]
    manifest: tuple[Run, ...]
    indexes: tuple[IndexState, ...]
    totals: dict[str, int]
    summary: dict
    quarantined: tuple[dict, ...] = ()
    key: str | None = None
    fenced: tuple[str, ...] = ()
    cleaned: tuple[tuple[int, int], ...] = ()
    savepoints: dict[str, int] = field(default_factory=dict)
    commit_states: dict[str, str] = field(default_factory=dict)
    defaults: dict[int, pa.Scalar] = field(default_factory=dict)
    retired: tuple[str, ...] = ()
    derived: tuple[DerivedColumn, ...] = ()
    previous: tuple[int, str] | None = None
    modified_us: int | None = field(default=None, init=False, compare=False, repr=False)
    is_shrunk: bool = field(default=False, init=False, compare=False, repr=False)

    @classmethod
    def before_first(cls, transaction: str, time_us: int, table_id: str) -> Instant:
        """Return version 0, without columns: the base of the first commit, by this transaction. Never published."""
        return cls(
            version=0,
            transaction=transaction,
            action="none",
            time_us=time_us,
            table_id=table_id,
            source={},
            schema=pa.schema([]),
            partitioning=(),
            fields={},
            columns={},
            file_schemas=(),
            next={"sequence": 0, "partition": 0, "field": 1, "column": 1, "index": 1},
            manifest=(),
            indexes=(),
            totals={"files": 0, "rows": 0, "bytes": 0, "plain": 0},
            summary={},
        )

    @cached_property
    def checksum(self) -> str:
        """The checksum of its sealed text, in hexadecimal: of the text that was read, if it was read."""
        return checksum_of(_document(self))

    @property
    def when_us(self) -> int:
        """When it was created, in microseconds since 1970 UTC: its own time, or its file's time if its own time is in
        the future of that."""
        if self.modified_us is None or self.time_us <= self.modified_us + _AHEAD_US_MAX:
            return self.time_us
        return self.modified_us

    @property
    def aged_us(self) -> int:
        """The time from which its age counts: its file's time. The clock of its writer may have been behind, and by its
        own time it would look older than it is."""
        return self.time_us if self.modified_us is None else self.modified_us

    def following(self, base: Instant) -> Instant:
        """Return a copy of this instant as the successor of `base`, which was read or published."""
        return replace(self, previous=(base.version, base.checksum) if base.version else None)

    def index_of(self, kind: str, column_id: int) -> IndexState | None:
        """Return the index of a kind that contains a column, None if there is none."""
        return next((i for i in self.indexes if i.kind == kind and column_id in i.columns), None)

    def with_index(self, changed: IndexState) -> Instant:
        """Return a copy of this instant with one index replaced, or added."""
        others = tuple(i for i in self.indexes if i.id != changed.id)
        return replace(self, indexes=tuple(sorted((*others, changed), key=lambda i: i.id)))

    def with_new_index(self, index: IndexState) -> Instant:
        """Return a copy of this instant with one more index, under the next id."""
        number = self.next["index"]
        return replace(self, next={**self.next, "index": number + 1}).with_index(replace(index, id=number))

    def with_commit_states(self, states: Mapping[str, str]) -> Instant:
        """Return a copy of this instant with other states of some commits. A completed commit is treated as an unknown
        one, and is left out, so that the instant does not grow with every commit."""
        merged = {**self.commit_states, **states}
        return replace(self, commit_states={c: state for c, state in merged.items() if state != COMPLETED})

    def version_of_savepoint(self, name: str) -> int:
        """Return the version that a savepoint names. Raise InvalidArgumentError if no savepoint has that name."""
        version = self.savepoints.get(name) if isinstance(name, str) else None
        if version is None:
            names = ", ".join(map(repr, sorted(self.savepoints))) or "none"
            raise InvalidArgumentError(f"no savepoint {name!r}; there are: {names}")
        return version

    def check_kept(self, version: int) -> None:
        """Raise NotATableError if a version was cleaned: files that only it named are removed, or soon will be."""
        if any(first <= version <= last for first, last in self.cleaned):
            raise NotATableError(
                f"version {version} was cleaned or purged, and can no longer be read; a savepoint keeps a version"
            )

    @cached_property
    def derived_names(self) -> dict[int, str]:
        """The names of derived columns by id, distinct from the names of this version's columns."""
        if not self.derived:
            return {}
        from ..predicates.expressions import shown, with_columns

        fields = {number: name for name, number in self.fields.items()}
        leaves = {number: path for path, number in self.columns.items()}
        taken, names = {*self.columns, *self.schema.names}, {}
        for one in self.derived:
            if one.expression is None and one.field in fields:
                names[one.id] = distinct_name(f"{fields[one.field]}[]", taken)
            elif one.expression is not None and leaves.keys() >= set(one.expression.columns):
                paths = [leaves[number] for number in one.expression.columns]
                names[one.id] = distinct_name(shown(with_columns(one.expression.node, paths.__getitem__)), taken)
        return names

    @cached_property
    def ids(self) -> dict[str, int]:
        """The ids of all that indexes cover: leaves by their dotted paths, and derived columns by their names."""
        return {**self.columns, **{name: number for number, name in self.derived_names.items()}}

    def path_of(self, column_id: int) -> str:
        """Return the dotted path of a column id, or the name of a derived column."""
        return next(path for path, number in self.ids.items() if number == column_id)

    def names_of(self, index: IndexState) -> list[str]:
        """Return the dotted paths of an index's columns, or the names of derived ones."""
        return [self.path_of(column) for column in index.columns]

    def derived_column(self, name: str) -> DerivedColumn | None:
        """Return the derived column of a name; None for any other name."""
        return next((one for one in self.derived if self.derived_names.get(one.id) == name), None)

    def with_indexes(self, indexes: tuple[IndexState, ...]) -> Instant:
        """Return a copy of this instant with these indexes, and without derived columns that none of them covers."""
        covered = {column for index in indexes for column in index.columns}
        return replace(self, indexes=indexes, derived=tuple(one for one in self.derived if one.id in covered))

    def stats_paths(self) -> tuple[str, ...]:
        """Return the dotted paths of the columns whose statistics commits maintain."""
        ids = {c for i in self.indexes if i.is_statistics and i.maintain == "commit" for c in i.columns}
        return tuple(path for path, number in self.columns.items() if number in ids)

    def to_bytes(self) -> bytes:
        """Return the sealed text. Raise StorageError if it is larger than what readers accept."""
        document = _document(self)
        try:
            check_size(document, INSTANT_BYTES_MAX)
        except FieldError as error:
            raise StorageError(
                f"version {self.version} is not written: its document would take {error}; refresh() indexes that "
                "cover few files, and repair or remove quarantined files"
            ) from None
        self.__dict__.setdefault("checksum", checksum_of(document))
        return document + b"\n" + seal_of(document)


def _document(instant: Instant) -> bytes:
    plain = {f.name: getattr(instant, f.name) for f in fields(instant) if f.init}
    plain["format"] = INSTANT_FORMAT
    if any(index.coverage.moved for index in instant.indexes):
        plain["requires"] = [REQUIRES_MOVED]
    plain["schema"] = _schema_text(instant.schema)
    plain["columns"] = [{"id": i, "path": p} for p, i in instant.columns.items()]
    plain["defaults"] = _defaults_text(instant.defaults)
    plain["file_schemas"] = [_plain_file_schema(schema) for schema in instant.file_schemas]
    return json.dumps(plain, ensure_ascii=False, default=_fields_of).encode()


def _fields_of(part: Any) -> dict:
    """Return the fields of a run, of an index's state, or of a coverage. `asdict` would copy everything within."""
    return {f.name: getattr(part, f.name) for f in fields(part)}


def _plain_file_schema(file: FileSchema) -> dict:
    plain = {
        "schema": _schema_text(file.schema),
        "fields": file.fields,
        "columns": file.columns,
        "is_declared": file.is_declared,
    }
    nested = [{"path": list(path), "name": name} for path, name in file.nested.items()]
    return {**plain, "nested": nested} if nested else plain


def seal_of(document: bytes) -> bytes:
    """Return the second line: a checksum, because a text with a flipped digit would still be JSON."""
    return f"crc32 {checksum_of(document)}\n".encode()


def checksum_of(document: bytes) -> str:
    return f"{zlib.crc32(document):08x}"


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _defaults_text(defaults: dict[int, pa.Scalar]) -> str | None:
    if not defaults:
        return None
    row = pa.record_batch([pa.repeat(v, 1) for v in defaults.values()], names=[str(i) for i in defaults])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_batch(row)
    return base64.b64encode(sink.getvalue()).decode()
