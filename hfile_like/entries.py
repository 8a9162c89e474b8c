"""Entries in memory: keys, value columns and tombstones of one length, checked from a caller's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import binary_array, from_numpy, offsets_and_data, take_keys, to_numpy
from ..errors import InvalidArgumentError, SchemaError
from .block_keys import KEY_BYTES_MAX
from .block_values import row_bytes

_BINARY_BYTES_MAX = (1 << 31) - 1
KEY_FIELD = pa.field("key", pa.binary(), nullable=False)
DELETED_FIELD = pa.field("deleted", pa.bool_(), nullable=False)


@dataclass
class Entries:
    """Entries in key order.

    keys      binary [n]
    columns   one array [n] for each value column of the schema
    deleted   bool [n], or None if nothing is deleted
    """

    keys: pa.BinaryArray
    columns: list[pa.Array]
    deleted: np.ndarray | None

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, length: int | None = None) -> Entries:
        """Return a part, without a copy."""
        if start == 0 and (length is None or length == len(self)):
            return self
        stop = None if length is None else start + length
        deleted = None if self.deleted is None else self.deleted[start:stop]
        return Entries(self.keys.slice(start, length), [c.slice(start, length) for c in self.columns], deleted)

    def take(self, positions: np.ndarray) -> Entries:
        """Return the entries at `positions`, in that order."""
        which = from_numpy(positions)
        deleted = None if self.deleted is None else self.deleted[positions]
        return Entries(take_keys(self.keys, positions), [column.take(which) for column in self.columns], deleted)

    def row_bytes(self) -> np.ndarray:
        """Return int64 [n]: the bytes of each entry before compression."""
        offsets, _ = offsets_and_data(self.keys)
        return np.diff(offsets.astype(np.int64)) + row_bytes(self.columns) + 1

    def to_batch(self, schema: pa.Schema, include_deleted: bool) -> pa.RecordBatch:
        """Return a batch of `scan_schema`: with tombstones and a column that marks them, or without tombstones."""
        if include_deleted:
            flags = np.zeros(len(self), bool) if self.deleted is None else self.deleted
            return pa.RecordBatch.from_arrays([self.keys, *self.columns, from_numpy(flags)], schema=schema)
        batch = pa.RecordBatch.from_arrays([self.keys, *self.columns], schema=schema)
        return batch if self.deleted is None else batch.filter(from_numpy(~self.deleted))

    @classmethod
    def concat(cls, parts: Sequence[Entries]) -> Entries:
        """Return the concatenated parts."""
        if len(parts) == 1:
            return parts[0]
        deleted = None
        if any(p.deleted is not None for p in parts):
            deleted = np.concatenate([np.zeros(len(p), bool) if p.deleted is None else p.deleted for p in parts])
        columns = [pa.concat_arrays(list(c)) for c in zip(*(p.columns for p in parts), strict=True)]
        return cls(pa.concat_arrays([p.keys for p in parts]), columns, deleted)


def column_positions(schema: pa.Schema, columns: Sequence[str] | None) -> list[int]:
    """Return the positions of columns in the schema; all for None. Raise SchemaError for an unknown column."""
    if columns is None:
        return list(range(len(schema)))
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise InvalidArgumentError(f"columns is a list of names, not {columns!r}")
    places = {name: i for i, name in enumerate(schema.names)}
    for name in columns:
        if name not in places:
            raise SchemaError(f"there is no value column {name!r}: there are {schema.names}")
    return [places[name] for name in columns]


def scan_schema(schema: pa.Schema, positions: Sequence[int], include_deleted: bool) -> pa.Schema:
    """Return the schema of a scan's batches."""
    fields = [KEY_FIELD, *(schema.field(p) for p in positions)]
    return pa.schema([*fields, DELETED_FIELD] if include_deleted else fields)


def normalize_input(
    schema: pa.Schema, keys: object, values: pa.RecordBatch | pa.Table | None, deleted: object
) -> list[Entries]:
    """Return the entries of a call, in one or more parts. Raise InvalidArgumentError, SchemaError."""
    chunks = key_chunks(keys)
    count = sum(map(len, chunks))
    flags = _flags(deleted, count)
    given = _value_columns(schema, values, count)
    columns = [c.chunk(0) if isinstance(c, pa.ChunkedArray) and c.num_chunks == 1 else c for c in given]
    if len(chunks) == 1 and pa.ChunkedArray not in map(type, columns):
        return [Entries(chunks[0], columns, flags)]
    chunked = pa.chunked_array(chunks, pa.binary())
    table = pa.Table.from_arrays([chunked, *columns], names=[KEY_FIELD.name, *schema.names])
    parts, row = [], 0
    for batch in table.to_batches():
        if batch.num_rows:
            part = None if flags is None else flags[row : row + batch.num_rows]
            parts.append(Entries(batch.column(0), batch.columns[1:], part))
        row += batch.num_rows
    return parts


def key_chunks(keys: object) -> list[pa.BinaryArray]:
    """Return keys as binary arrays. Raise InvalidArgumentError for nulls, other types and keys that are too long."""
    array = _arrow_keys(keys)
    key_type = array.type
    if not (
        pa.types.is_binary(key_type) or pa.types.is_large_binary(key_type) or pa.types.is_fixed_size_binary(key_type)
    ):
        raise InvalidArgumentError(f"keys must be binary, not {key_type}: cast them")
    if array.null_count:
        raise InvalidArgumentError(f"{array.null_count} keys are null: every entry needs a key")
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    plain = [piece for chunk in chunks if len(chunk) for piece in _binary_chunks(chunk)]
    for chunk in plain:
        if int(np.diff(offsets_and_data(chunk)[0]).max()) > KEY_BYTES_MAX:
            raise InvalidArgumentError(f"a key is longer than {KEY_BYTES_MAX:,} bytes: shorten it")
    return plain


def _arrow_keys(keys: object) -> pa.Array | pa.ChunkedArray:
    if isinstance(keys, (pa.Array, pa.ChunkedArray)):
        return keys
    try:
        listed = list(keys)  # type: ignore[call-overload]
    except TypeError as error:
        raise InvalidArgumentError(f"keys must be bytes ({error})") from None
    for key in listed:
        if not isinstance(key, bytes):
            what = "text: encode them" if isinstance(key, str) else type(key).__name__
            raise InvalidArgumentError(f"keys must be bytes, not {what}")
    return binary_array(listed)


def _binary_chunks(chunk: pa.Array) -> list[pa.BinaryArray]:
    if pa.types.is_binary(chunk.type) and not pa.types.is_fixed_size_binary(chunk.type):
        return [chunk]
    if chunk.nbytes > _BINARY_BYTES_MAX // 2 and len(chunk) > 1:
        half = len(chunk) // 2
        return _binary_chunks(chunk.slice(0, half)) + _binary_chunks(chunk.slice(half))
    try:
        return [chunk.cast(pa.binary())]
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"keys cannot be read as binary ({error})") from None


def check_ascending(keys: pa.BinaryArray, before: bytes | None) -> bytes:
    """Return the last key. Raise InvalidArgumentError with the first key that is not above the one before it."""
    first = keys[0].as_py()
    if before is not None and first <= before:
        raise _out_of_order(first, before)
    rises = pc.less(keys[:-1], keys[1:])
    if not pc.all(rises).as_py() and len(rises):
        row = pc.index(rises, False).as_py()
        raise _out_of_order(keys[row + 1].as_py(), keys[row].as_py())
    return keys[len(keys) - 1].as_py()


def prefix_changes(keys: pa.BinaryArray, prefix_bytes: int) -> list[int]:
    """Return the positions, ascending, of keys whose first bytes differ from the key before; none for 0 bytes."""
    if not prefix_bytes or len(keys) < 2:
        return []
    prefixes = pc.binary_slice(keys, 0, prefix_bytes)
    return (np.flatnonzero(to_numpy(pc.not_equal(prefixes[1:], prefixes[:-1]))) + 1).tolist()


def _out_of_order(key: bytes, before: bytes) -> InvalidArgumentError:
    what = "is there twice" if key == before else f"comes after {_short(before)}"
    return InvalidArgumentError(f"key {_short(key)} {what}: keys must be unique and ascending")


def _short(key: bytes) -> str:
    return repr(key) if len(key) <= 80 else f"{key[:80]!r}... ({len(key):,} bytes)"


def _value_columns(
    schema: pa.Schema, values: pa.RecordBatch | pa.Table | None, count: int
) -> list[pa.Array | pa.ChunkedArray]:
    if values is None:
        return [pa.nulls(count, field.type) for field in schema]
    if not isinstance(values, (pa.RecordBatch, pa.Table)):
        raise InvalidArgumentError(f"values must be a RecordBatch or a Table, not {type(values).__name__}")
    if values.schema.equals(schema) and values.num_rows == count:
        return values.columns
    if sorted(values.schema.names) != sorted(schema.names):
        raise SchemaError(f"values have the columns {values.schema.names}, the file {schema.names}")
    for field in schema:
        given = values.schema.field(field.name).type
        if given != field.type:
            raise SchemaError(f"column {field.name!r} is of type {given}, the file has {field.type}: cast it")
    if values.num_rows != count and (schema.names or values.num_rows):
        raise InvalidArgumentError(f"there are {count} keys and {values.num_rows} rows of values")
    return [values.column(name) for name in schema.names]


def _flags(deleted: object, count: int) -> np.ndarray | None:
    if deleted is None:
        return None
    if isinstance(deleted, (pa.Array, pa.ChunkedArray)):
        if deleted.null_count or not pa.types.is_boolean(deleted.type):
            raise InvalidArgumentError("`deleted` must be booleans without nulls")
        deleted = to_numpy(deleted)
    try:
        flags = np.asarray(deleted)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"`deleted` must be booleans ({error})") from None
    if flags.dtype != bool and len(flags):
        raise InvalidArgumentError(f"`deleted` must be booleans, not {flags.dtype}")
    if flags.ndim != 1 or len(flags) != count:
        raise InvalidArgumentError(f"there are {count} keys and {flags.size} `deleted`")
    return flags.astype(bool) if flags.any() else None
