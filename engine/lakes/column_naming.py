"""The columns of a table with a log, and how its Parquet files name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ...base import canon
from ...errors import NotReadableError, SchemaError
from ..parquet.leaves import UNTRUSTED, NestedNames, children_of, plain_type
from ..predicates.coerce import is_list, merged_type

Path = tuple[str, ...]  # names from a column to a field within it


@dataclass(frozen=True)
class NamesInFile:
    """The names of one file's columns in the table.

    columns    {name in the file: name in the table}, only of columns that the table has
    nested     {path in the file: name in the table, or None if the table lacks it} of fields within these columns that
               have another name in the table; for a column itself, why it cannot be read
    """

    columns: dict[str, str]
    nested: NestedNames


@dataclass(frozen=True)
class ColumnNaming:
    """How the files of a log name the table's columns.

    physical   {name in every file without field ids: name in the table}; None if such files may have other names
    ids        {field id: dotted path in the table} of every field, also nested ones, if files have ids
    fallback   {path in a file: field id} for files without ids (Iceberg's mapping of names)
    types      the table's columns, if files may have types that only the format's own reader casts
    nested     {path in every file: name in the table} of fields within columns
    nested_defaults    ids of fields within columns whose initial default is not null
    """

    physical: dict[str, str] | None
    ids: dict[int, str] = field(default_factory=dict)
    fallback: dict[Path, int] | None = None
    types: pa.Schema | None = None
    nested: dict[Path, str] = field(default_factory=dict)
    nested_defaults: frozenset[int] = frozenset()

    @property
    def is_by_name(self) -> bool:
        """Whether every file has the table's names, and nothing else identifies a column."""
        return not self.ids and all(physical == name for physical, name in (self.physical or {}).items())

    @property
    def is_per_file(self) -> bool:
        """Whether a file must be opened to learn the names of its columns in the table."""
        return self.physical is None or bool(self.ids) or any(path[-1] != name for path, name in self.nested.items())

    def misfit_of(self, schema: pa.Schema) -> str | None:
        """Return why Skipstone cannot read the rows of a file: a column whose type does not widen to the table's as
        Hudi widens it: float to double by its text, so 0.1 stays 0.1."""
        if self.types is None:
            return None
        for column in schema:
            if self.types.get_field_index(column.name) >= 0:
                arrow_type = self.types.field(column.name).type
                if merged_type(arrow_type, column.type) != arrow_type or is_cast_by_text(arrow_type, column.type):
                    return f"type:{column.name} is {column.type}"
        return None

    def names_in(self, schema: pa.Schema, path: str, log_only: Iterable[str] | None = None) -> NamesInFile:
        """Return the names of a file's columns. `schema`: its Arrow schema with Parquet's field ids.

        Raises SchemaError if nothing names the columns of a file without ids, or if it lacks a column whose value only
        the log has (`log_only`).
        """
        ids = self._ids_in(schema, path)
        if ids is None:
            assert self.physical is not None
            columns = {name: self.physical[name] for name in schema.names if name in self.physical}
        else:
            columns = {name: self.ids[n] for (name, *below), n in ids.items() if not below and n in self.ids}
        lacking = sorted(set(log_only or ()).difference(columns.values()))
        if lacking:
            raise SchemaError(
                f"{path}: lacks column {lacking[0]!r}, whose value only the log has; partition every file of the table "
                "by it, or rewrite the file"
            )
        nested: dict[Path, str | None] = {}
        for physical, name in columns.items():
            if ids is not None:
                below: dict[Path, str | None] = {}
                try:
                    self._add_by_ids(schema.field(physical).type, (physical,), name, ids, below)
                    self._check_defaults(physical, name, ids)
                    nested.update(below)
                except SchemaError as error:
                    nested[(physical,)] = str(error)
            elif self.nested:
                self._add_by_names(schema.field(physical).type, (physical,), nested)
        return NamesInFile(columns, nested)

    def _ids_in(self, schema: pa.Schema, path: str) -> dict[Path, int] | None:
        """Return the field ids of a file by path; None if the files of the log are read by name."""
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
        arrow_type: pa.DataType,
        path: Path,
        dotted: str,
        ids: Mapping[Path, int],
        nested: dict[Path, str | None],
    ) -> None:
        """Add the fields within a type that the table names differently. The type is at `path` in files, at `dotted` in
        the table."""
        names: dict[str, str | None] = {}
        children = children_of(arrow_type)
        is_struct = pa.types.is_struct(arrow_type)
        for step, _ in children:
            number = ids.get((*path, step))
            now = None if number is None else self.ids.get(number)
            if now is None:
                names[step] = step if number is None else None
            elif now.startswith(f"{dotted}."):
                names[step] = now[len(dotted) + 1 :]
            if step not in names or (names[step] != step and not is_struct):
                raise SchemaError(f"its field {'.'.join((*path, step))!r} is not in this column of the table")
        by_id = {names[step] for step, _ in children if ids.get((*path, step)) in self.ids}
        for step, child in children:
            if names[step] in by_id and ids.get((*path, step)) not in self.ids:
                names[step] = None
            name = names[step]
            if name != step:
                nested[(*path, step)] = name
            if name is not None:
                self._add_by_ids(child.type, (*path, step), f"{dotted}.{name}", ids, nested)

    def _check_defaults(self, physical: str, name: str, ids: Mapping[Path, int]) -> None:
        """Raise SchemaError if a column of a file lacks a field that has an initial default."""
        present = {number for path, number in ids.items() if path[0] == physical}
        for number in sorted(self.nested_defaults - present):
            if self.ids[number].startswith(f"{name}."):
                raise SchemaError(f"it lacks {self.ids[number]!r}, which has an initial default")

    def _add_by_names(self, arrow_type: pa.DataType, path: Path, nested: dict[Path, str | None]) -> None:
        for step, child in children_of(arrow_type):
            below = (*path, step)
            name = self.nested.get(below)
            if name != step:
                nested[below] = name
            if name is not None:
                self._add_by_names(child.type, below, nested)


@dataclass(frozen=True)
class Columns:
    """The columns of a log's table.

    schema         the table's, partition columns included
    partitioning   names of the partition columns
    keys           {name: the log's key of a column, which survives a rename}
    naming         how files name them
    defaults       {name: the value in files that lack the column}, if it is not null
    inner          {the log's key of a field within a column: the column's key and the dotted path}, if it has more keys
                   than names
    last_id        the greatest field id that the log ever gave; None if it is unknown
    """

    schema: pa.Schema
    partitioning: tuple[str, ...]
    keys: dict[str, str]
    naming: ColumnNaming
    defaults: dict[str, pa.Scalar] = field(default_factory=dict)
    inner: dict[str, str] = field(default_factory=dict)
    last_id: int | None = None

    def __post_init__(self) -> None:
        if len(self.partitioning) == len(self.schema.names):
            raise NotReadableError("the table has no column that is not a partition column")


def field_id(field: pa.Field) -> int | None:
    """Return the field id that a Parquet file gives a column or a field within one."""
    value = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if value is None else int(value)


def fields_of(schema: pa.Schema) -> Iterator[tuple[Path, pa.Field]]:
    """Yield (path, field) of each column, and of each field within columns."""
    waiting: list[tuple[Path, pa.Field]] = [((field.name,), field) for field in schema]
    while waiting:
        path, field = waiting.pop()
        yield path, field
        waiting += [((*path, step), child) for step, child in children_of(field.type)]


def normalized_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which equal values have equal types, at every depth: nullable, without large types, and
    without extension types except UUID. Of its metadata, only the mark UNTRUSTED is kept."""
    mark = {UNTRUSTED: b""} if UNTRUSTED in (schema.metadata or ()) else None
    return pa.schema([pa.field(f.name, _normalized_type(f.type)) for f in schema], mark)


def _normalized_type(arrow_type: pa.DataType) -> pa.DataType:
    if canon.is_uuid(arrow_type):
        return arrow_type
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _normalized_type(arrow_type.storage_type)
    arrow_type = plain_type(arrow_type)
    if pa.types.is_large_string(arrow_type):
        return pa.string()
    if pa.types.is_large_binary(arrow_type):
        return pa.binary()
    if pa.types.is_struct(arrow_type):
        return pa.struct([pa.field(f.name, _normalized_type(f.type)) for f in arrow_type])
    if pa.types.is_map(arrow_type):
        return pa.map_(_normalized_type(arrow_type.key_type), _normalized_type(arrow_type.item_type))
    if is_list(arrow_type):
        return pa.list_(_normalized_type(arrow_type.value_type))
    return arrow_type


def is_cast_by_text(kind: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether Hudi casts a stored type, or a field of it, by the values' texts."""
    if pa.types.is_float64(kind) and pa.types.is_float32(stored):
        return True
    fields = dict(children_of(kind))
    return any(name in fields and is_cast_by_text(fields[name].type, f.type) for name, f in children_of(stored))
