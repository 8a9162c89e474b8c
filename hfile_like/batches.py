"""Blocks as Arrow batches, for readers with a footer and for those without."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..arrays import from_numpy
from ..errors import InvalidArgumentError, SchemaError
from .block import Block
from .codec import Where
from .dictionary import Dictionary
from .entries import Entries
from .source import Source, close_source, name_of, open_source, read_exact
from .strings import Rows
from .values import check_schema

KEY_FIELD = pa.field("key", pa.binary(), nullable=False)
DELETED_FIELD = pa.field("deleted", pa.bool_(), nullable=False)


def read_block_range(
    source: Source | str | os.PathLike[str] | bytes,
    offset: int,
    length: int,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    include_deleted: bool = False,
    dictionary: bytes | None = None,
) -> pa.Table:
    """The entries of the blocks in a range (a GroupHandle's offset and length), without a footer: one range read.
    `schema` is that of the value columns, as the file was written with; `dictionary`: `SortedFileReader.dictionary` of
    it, where there is one. Raises CorruptionError where the range does not hold whole blocks of that schema,
    InvalidArgumentError where a block needs the dictionary and it is not given."""
    schema = check_schema(schema)
    if offset < 0 or length < 0:
        raise InvalidArgumentError(f"there is no range of {length} bytes at {offset}: give a GroupHandle's")
    positions = column_positions(schema, columns)
    given, owned = open_source(source)
    try:
        view = read_exact(given, [(offset, length)])[0]
    finally:
        if owned:
            close_source(given)
    result = scan_schema(schema, positions, include_deleted)
    shared = None if dictionary is None else Dictionary.of(dictionary)
    batches, at = [], 0
    while at < length:
        block = Block(view[at:], Where(name_of(given), offset + at), schema, shared)
        batches.append(to_batch(block_entries(block, positions), result, include_deleted))
        at += block.length_bytes
    return pa.Table.from_batches(batches, result)


def column_positions(schema: pa.Schema, columns: Sequence[str] | None) -> list[int]:
    """Where the asked columns stand in the schema; all for None. Raises SchemaError for one that is not there."""
    if columns is None:
        return list(range(len(schema)))
    if not isinstance(columns, str) and not isinstance(columns, Sequence):
        raise InvalidArgumentError(f"columns is a list of names, not {columns!r}")
    if isinstance(columns, str):
        raise InvalidArgumentError(f"columns is a list of names: give [{columns!r}]")
    places = {name: i for i, name in enumerate(schema.names)}
    for name in columns:
        if name not in places:
            raise SchemaError(f"there is no value column {name!r}: there are {schema.names}")
    return [places[name] for name in columns]


def scan_schema(schema: pa.Schema, positions: Sequence[int], include_deleted: bool) -> pa.Schema:
    """The schema of what a scan returns."""
    fields = [KEY_FIELD, *(schema.field(p) for p in positions)]
    return pa.schema([*fields, DELETED_FIELD] if include_deleted else fields)


def to_batch(entries: Entries, schema: pa.Schema, include_deleted: bool) -> pa.RecordBatch:
    """Entries as a batch: tombstones with a column that tells them, or dropped."""
    if include_deleted:
        flags = np.zeros(len(entries), bool) if entries.deleted is None else entries.deleted
        return pa.RecordBatch.from_arrays([entries.keys, *entries.columns, from_numpy(flags)], schema=schema)
    batch = pa.RecordBatch.from_arrays([entries.keys, *entries.columns], schema=schema)
    return batch if entries.deleted is None else batch.filter(from_numpy(~entries.deleted))


def block_entries(block: Block, positions: Sequence[int], rows: Rows | None = None, keys: bool = True) -> Entries:
    """The entries of a block, or those at `rows`, with the columns at `positions`; the keys only where they are
    wanted."""
    if rows is None:
        decoded = block.keys.to_arrow() if keys else pa.nulls(block.entries, pa.binary())
        return Entries(decoded, [block.column(p).to_arrow() for p in positions], block.deleted())
    columns = [block.column(p).take(rows) for p in positions]
    deleted = block.deleted()
    deleted = None if deleted is None else deleted[rows]
    if not keys:
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        return Entries(pa.nulls(count, pa.binary()), columns, deleted)
    decoded = block.keys.to_arrow()
    return Entries(decoded[rows] if isinstance(rows, slice) else decoded.take(from_numpy(rows)), columns, deleted)
