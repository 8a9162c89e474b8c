"""Logs of other table formats, as a source of live files: Delta (through `deltalake`), Iceberg (through `pyiceberg`),
Hudi (by its timeline).

A log is asked three things: what its latest state is, which files are live in a state, and what changed since another.
A state is the log at one of its versions; its `mark` differs from that of another log that has the same version at the
same place. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from ...errors import SchemaError
from ..parquet.leaves import NestedNames, children_of
from ..predicates.coerce import merged_type

if TYPE_CHECKING:
    from ..state import Instant


@dataclass(frozen=True)
class FileNames:
    """What a file's columns are called in the table.

    columns    {name in the file: name in the table}; columns that are not the table's are left out
    nested     of fields within these columns, those that have another name in the table, or (None) are not in it; of a
               column itself, why it cannot be read
    """

    columns: dict[str, str]
    nested: NestedNames


@dataclass(frozen=True)
class Naming:
    """How the files of a log name the table's columns.

    physical   {name in every file: name in the table}; None where files may differ, and have field ids
    ids        {field id: dotted path in the table} of every field, nested ones too, where files have ids
    fallback   {path of names in a file: field id} for files without ids of their own
    types      the table's columns, where files may hold them under types that only the format's own reader casts
    nested     {path of names in every file: name in the table} of fields within columns, where these have names of
               their own in files
    nested_defaults    ids of fields within columns that begin with another value than null
    """

    physical: dict[str, str] | None
    ids: dict[int, str] = field(default_factory=dict)
    fallback: dict[tuple[str, ...], int] | None = None
    types: pa.Schema | None = None
    nested: dict[tuple[str, ...], str] = field(default_factory=dict)
    nested_defaults: frozenset[int] = frozenset()

    @property
    def is_per_file(self) -> bool:
        """Whether a file must be opened to know what its columns are called in the table."""
        return self.physical is None or any(path[-1] != name for path, name in self.nested.items())

    def misfit_of(self, schema: pa.Schema) -> str | None:
        """Why the rows of a file, by its Arrow schema, are not ours to read: a column that is not of the table's type,
        or one that it holds. None where they are."""
        if self.types is not None:
            for column in schema:
                if self.types.get_field_index(column.name) >= 0:
                    kind = self.types.field(column.name).type
                    if merged_type(kind, column.type) != kind:
                        return f"type:{column.name} is {column.type}"
        return None

    def names_in(self, schema: pa.Schema, path: str, log_only: Iterable[str] | None = None) -> FileNames:
        """The names of a file's columns by its Arrow schema (with what Parquet says of its fields).

        Raises SchemaError for a file without ids where nothing else names its columns, and for one that lacks a
        column whose value the log has (`log_only`).
        """
        ids = self._ids_in(schema, path)
        if ids is None:
            assert self.physical is not None
            columns = {physical: self.physical[physical] for physical in schema.names if physical in self.physical}
        else:
            columns = {physical: self.ids[n] for (physical, *below), n in ids.items() if not below and n in self.ids}
        lacking = sorted(set(log_only or ()).difference(columns.values()))
        if lacking:
            raise SchemaError(
                f"{path}: lacks column {lacking[0]!r}, whose value only the log has; partition every file of the table "
                "by it, or rewrite the file"
            )
        nested: dict[tuple[str, ...], str | None] = {}
        if ids is not None:
            for physical, name in columns.items():
                below: dict[tuple[str, ...], str | None] = {}
                try:
                    self._add_by_ids(schema.field(physical).type, (physical,), name, ids, below)
                    self._check_defaults(physical, name, ids)
                    nested.update(below)
                except SchemaError as error:
                    nested[(physical,)] = str(error)
        elif self.nested:
            for physical in columns:
                self._add_by_names(schema.field(physical).type, (physical,), nested)
        return FileNames(columns, nested)

    def _ids_in(self, schema: pa.Schema, path: str) -> dict[tuple[str, ...], int] | None:
        """The field ids of a file, by paths of its own names; None where files of the log are read by name."""
        if not self.ids:
            return None
        if any(field_id(column) is not None for column in schema):
            numbers = {path: field_id(each) for path, each in fields_of(schema)}
            return {path: number for path, number in numbers.items() if number is not None}
        if self.physical is not None:
            return None
        if self.fallback is None:
            raise SchemaError(f"{path}: its columns have no field ids, and the table has no mapping of names")
        return {path: self.fallback[path] for path, _ in fields_of(schema) if path in self.fallback}

    def _add_by_ids(
        self,
        kind: pa.DataType,
        path: tuple[str, ...],
        place: str,
        ids: Mapping[tuple[str, ...], int],
        nested: dict[tuple[str, ...], str | None],
    ) -> None:
        """Adds what is named otherwise within a type, which a file has at `path` and the table at `place`."""
        names: dict[str, str | None] = {}
        children = children_of(kind)
        is_struct = pa.types.is_struct(kind)
        for step, _ in children:
            number = ids.get((*path, step))
            now = None if number is None else self.ids.get(number)
            if now is None:
                names[step] = step if number is None else None
            elif now.startswith(f"{place}."):
                names[step] = now[len(place) + 1 :]
            if step not in names or (names[step] != step and not is_struct):
                raise SchemaError(f"its field {'.'.join((*path, step))!r} does not lie in it in the table")
        by_id = {names[step] for step, _ in children if ids.get((*path, step)) in self.ids}
        for step, child in children:
            if names[step] in by_id and ids.get((*path, step)) not in self.ids:
                names[step] = None
            name = names[step]
            if name != step:
                nested[(*path, step)] = name
            if name is not None:
                self._add_by_ids(child.type, (*path, step), f"{place}.{name}", ids, nested)

    def _check_defaults(self, physical: str, name: str, ids: Mapping[tuple[str, ...], int]) -> None:
        """Raises SchemaError where a column of a file lacks a field that begins with a default."""
        present = {number for path, number in ids.items() if path[0] == physical}
        for number in sorted(self.nested_defaults - present):
            if self.ids[number].startswith(f"{name}."):
                raise SchemaError(f"it lacks {self.ids[number]!r}, which begins with a default")

    def _add_by_names(
        self, kind: pa.DataType, path: tuple[str, ...], nested: dict[tuple[str, ...], str | None]
    ) -> None:
        for step, child in children_of(kind):
            below = (*path, step)
            name = self.nested.get(below)
            if name != step:
                nested[below] = name
            if name is not None:
                self._add_by_names(child.type, below, nested)


def field_id(field: pa.Field) -> int | None:
    """The field id that a Parquet file gives a column or a field within one."""
    value = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if value is None else int(value)


def fields_of(schema: pa.Schema) -> Iterator[tuple[tuple[str, ...], pa.Field]]:
    """(path, field) of each column, and of each field within columns."""
    waiting: list[tuple[tuple[str, ...], pa.Field]] = [((field.name,), field) for field in schema]
    while waiting:
        path, field = waiting.pop()
        yield path, field
        waiting += [((*path, step), child) for step, child in children_of(field.type)]


# One row a live file. `deletes` is null where every row of the file is live, and else names the deletes that apply, or
# another reason for which its rows are not ours to read: with the path, a part of its identity. `row_count` is what the
# log says, deleted rows included; null where it does not say. `given` are columns, other than partition columns, of
# which the log has the value that all rows of the file hold, should the file itself lack them. What follows is of files
# that form slices, as the manifest has it; null elsewhere (`kind`: a base).
LOG_FILES = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("partition", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("row_count", pa.int64()),
        pa.field("deletes", pa.string()),
        pa.field("given", pa.list_(pa.string())),
        *(pa.field(name, pa.string()) for name in ("kind", "file_group", "slice_instant", "commit", "merge")),
    ]
)


@dataclass(frozen=True)
class Columns:
    """The columns of a log's table.

    schema         the table's, partition columns included
    partitioning   names of the partition columns
    keys           name -> what the log knows a column by: it survives a rename
    naming         how files name them
    inner          of fields within columns, where the log knows them by more than their names: what it knows one by ->
                   key of the column, dotted path
    defaults       name -> what files that lack the column hold, where that is not null
    """

    schema: pa.Schema
    partitioning: tuple[str, ...]
    keys: dict[str, str]
    naming: Naming
    defaults: dict[str, pa.Scalar] = field(default_factory=dict)
    inner: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Changes:
    """What happened between two states: files that came or changed (LOG_FILES), and every path whose file, as it was
    before, is live no more. `added` is all that is live, and `removed` None, where the log does not show it. `groups`:
    (partition, file group) of which only the files in `added` are live."""

    added: pa.Table
    removed: frozenset[str] | None
    groups: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class RecordedState:
    """A state that was looked up before, as an instant remembers it.

    partitioning    (key, type) of each partition column, in order: what the log knows it by
    has_nested_names    fields within columns may have other names in files, which only `Naming` knows
    """

    version: int | None
    position: str
    table_id: str
    mark: str
    partitioning: tuple[tuple[str, pa.Field], ...]
    has_nested_names: bool = False


class LogState(Protocol):
    """One state of a log.

    kind        "delta" | "iceberg" | "hudi"
    version     the log's own number for it; None where it has none yet
    position    by which `LogSource.state_at` finds it again
    table_id    the log's own id of its table: a table that was made again has another
    mark        differs from that of another state of the same version, of a log that was replaced
    """

    kind: str
    mark: str

    @property
    def version(self) -> int | None: ...

    @property
    def position(self) -> str: ...

    @property
    def table_id(self) -> str: ...

    def columns(self) -> Columns | None:
        """The table's columns; None where they are those of the state that this one was looked up from."""
        ...

    def changes(self, *, is_anew: bool = False) -> Changes:
        """What happened since the state that this one was looked up from; everything, where there was none, or where
        nothing of what was known of the table stays."""
        ...


class LogSource(Protocol):
    """The log of one table.

    location    what opens it in another process: the table's directory, or the metadata file that was read last where
                another than the newest may count
    """

    @property
    def location(self) -> str: ...

    def state_at(self, position: str | None, since: RecordedState | None) -> LogState | None:
        """The latest state, or the one at a position; None where it is `since`, the state that is known.

        Raises NotATableError where there is no such log, NotReadableError for one in which rows could be missed or
        misread, StorageError where it cannot be read now, InvalidArgumentError where the package for it is missing."""
        ...

    def position_of(self, log_version: int) -> str:
        """The position of the state that the log numbers so. Raises NotATableError where the log has it no more, or
        never had; else as `state_at`."""
        ...

    def deleted_rows(self, position: str | None, paths: Sequence[str]) -> dict[str, np.ndarray]:
        """The rows that deletes take out of some live files of a state: int64, ascending, by their position. Files of
        which that is not known, as of those under equality deletes, are left out. Raises as `state_at`."""
        ...


@runtime_checkable
class MergesSlices(Protocol):
    """A log whose slices its own reader merges into rows."""

    def slice_rows(self, position: str | None) -> Callable[[pa.Table], pa.Table]:
        """What gives the rows of one slice at a state, from its files (path, kind, merge). Raises as
        `LogSource.state_at`; it raises NotReadableError, naming a file, for a slice that the reader cannot merge."""
        ...


@runtime_checkable
class KnowsBounds(Protocol):
    """A state of a log whose metadata know of files over bases what these hold."""

    def bounds_of_logs(self, files: pa.Table, columns: Sequence[str]) -> dict[str, pa.Array]:
        """Bounds in files that are no bases (LOG_FILES), for those of some columns of which any is known: a struct
        {min, max} a file, null where it is not known for sure."""
        ...


def described(state: LogState) -> dict[str, Any]:
    """A state as the instant holds it (`Instant.source`)."""
    return {
        "kind": state.kind,
        "version": state.version,
        "position": state.position,
        "table": state.table_id,
        "mark": state.mark,
    }


def recorded_state(instant: Instant) -> RecordedState:
    """The state that a version was made of."""
    source = instant.source
    keys = {number: key for key, number in source["keys"].items()}
    return RecordedState(
        source["version"],
        source["position"],
        source["table"],
        source["mark"],
        tuple((keys[instant.fields[name]], instant.schema.field(name)) for name in instant.partitioning),
        bool(source.get("inner")),
    )
