"""The columns of a version for Iceberg clients: their ids, and the mapping of names by which clients read the files.

A column has the same id as in Skipstone, in every version. The id of a field within a column is a hash of the column's
id and the field's path. A name that only files have gets a hash of it as its id, so that clients can skip it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema

from ..base import canon
from ..engine.parquet.leaves import children_of, plain_type
from ..engine.state import FileSchema, Instant
from ..errors import SchemaError

_INNER_BASE, _INNER_COUNT = 1 << 30, (1 << 30) - 1000  # Iceberg reserves the ids near the end
_FIELD_ID = b"PARQUET:field_id"
_EXACT = {
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.date32(), pa.time64("us")),
}


def iceberg_schema(instant: Instant) -> Schema:
    """Return the Iceberg schema of a version. Its id is a hash of it. Nanoseconds become microseconds. Raises
    SchemaError for a column that clients do not read exactly."""
    fields = [_with_ids(f, instant.fields[f.name], str(instant.fields[f.name]), f.name) for f in instant.schema]
    ids = list(ids_of(fields))
    if len(set(ids)) < len(ids):
        raise SchemaError("two fields within columns have the same hash; rename one of them to serve the table")
    schema = pyarrow_to_schema(pa.schema(fields))
    return Schema(*schema.fields, schema_id=zlib.crc32(schema.model_dump_json().encode()) & 0x7FFF_FFFF)


def _with_ids(field: pa.Field, number: int, path: str, name: str) -> pa.Field:
    """Return a field with ids, of an Iceberg type. `path`: the column's id and the names below; `name`: for errors."""
    kind = plain_type(field.type)
    below = {n: _with_ids(f, _inner_id(f"{path}.{n}"), f"{path}.{n}", f"{name}.{n}") for n, f in children_of(kind)}
    if pa.types.is_map(kind):
        kind = pa.map_(below["key"].with_nullable(False), below["value"])
    elif pa.types.is_struct(kind):
        kind = pa.struct(list(below.values()))
    elif below:
        kind = pa.list_(below["element"])
    elif pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", None if kind.tz is None else "UTC")
    elif pa.types.is_decimal(kind):
        kind = kind if pa.types.is_decimal128(kind) and kind.scale >= 0 else None
    elif not (kind in _EXACT or canon.is_uuid(kind) or pa.types.is_fixed_size_binary(kind)):
        kind = None
    if kind is None:
        raise SchemaError(f"column {name!r} is {field.type}, which Iceberg clients do not read exactly")
    return pa.field(field.name, kind, metadata={_FIELD_ID: str(number)})


def _inner_id(path: str) -> int:
    return _INNER_BASE + zlib.crc32(path.encode("utf-8", "surrogatepass")) % _INNER_COUNT


def ids_of(fields: Iterable[pa.Field]) -> Iterator[int | None]:
    """Yield the field ids of some fields, and of all fields within; None for a field without one."""
    for field in fields:
        value = (field.metadata or {}).get(_FIELD_ID)
        yield None if value is None else int(value)
        yield from ids_of(child for _, child in children_of(field.type))


class NameMapping:
    """The column of each physical name, in all files of a version; if files differ, in the newest ones. If it
    `is_ambiguous`, a client that loaded the table earlier would misread new files by the old mapping."""

    def __init__(self, instant: Instant):
        self._tree: dict[str, dict] = {}
        columns: dict[str, set[int]] = {}
        for file in reversed(instant.file_schemas):
            for field in file.schema:
                number = _id_in_file(file, field.name)
                if self._tree.get(field.name, {"id": number})["id"] == number:
                    _merge(self._tree, field.name, field.type, number, str(number))
                if field.name in file.fields:
                    columns.setdefault(field.name, set()).add(number)
        self.is_ambiguous = any(len(numbers) > 1 for numbers in columns.values())

    def to_json(self) -> str:
        """Return the value of the table property `schema.name-mapping.default`."""
        return json.dumps(_mapped(self._tree))

    def misfit_of(self, file: FileSchema, instant: Instant) -> str | None:
        """Return why clients that read a version would misread the files of a schema; None if they would not."""
        live = set(instant.fields.values())
        for name in file.schema.names:
            ids = {self._tree.get(name, {}).get("id"), _id_in_file(file, name)}
            if len(ids) > 1 and ids & live:
                return f"its column {name!r} is another one than in newer files"
        if file.nested:
            return f"it has another name for a field within {next(iter(file.nested))[0]!r}"
        lacking = [n for n, i in instant.fields.items() if i in instant.defaults and i not in file.fields.values()]
        return f"it lacks {lacking[0]!r}, which has a default" if lacking else None


def _id_in_file(file: FileSchema, name: str) -> int:
    number = file.fields.get(name)
    return _inner_id(f"not a column.{name}") if number is None else number


def _merge(tree: dict[str, dict], name: str, kind: pa.DataType, number: int, path: str) -> None:
    node = tree.setdefault(name, {"id": number, "fields": {}})
    for step, child in children_of(kind):
        _merge(node["fields"], step, child.type, _inner_id(f"{path}.{step}"), f"{path}.{step}")


def _mapped(tree: Mapping[str, dict]) -> list[dict[str, Any]]:
    """Return one entry per column, with all of its names."""
    by_id: dict[int, dict[str, Any]] = {}
    for name, node in tree.items():
        entry = by_id.setdefault(node["id"], {"field-id": node["id"], "names": [], "fields": {}})
        entry["names"].append(name)
        entry["fields"] |= node["fields"]
    return [{**entry, "fields": _mapped(entry["fields"])} for entry in by_id.values()]
