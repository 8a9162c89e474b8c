"""Scans: the entries of blocks as Arrow batches, one per block."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ..base.arrays import from_numpy
from ..errors import InvalidArgumentError
from .block import Block
from .block_keys import lower_bound
from .block_reader import BlockReader
from .block_values import check_schema
from .codec import Location
from .entries import Entries, column_positions, scan_schema
from .frame import Rows
from .source import Source, close_source, name_of, open_source, read_exact


def scan(
    reader: BlockReader,
    blocks: Sequence[int],
    start: bytes,
    stop: bytes | None,
    positions: Sequence[int],
    include_deleted: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of some blocks from key `start` on, before `stop`, with the value columns at `positions`."""
    schema = scan_schema(reader.schema, positions, include_deleted)
    for number, block in enumerate(reader.read_blocks(blocks), 1):
        low = lower_bound(block.keys, start) if number == 1 and start else 0
        is_last = number == len(blocks)
        high = lower_bound(block.keys, stop) if is_last and stop is not None else block.entries
        batch = block_entries(block, positions, slice(low, max(low, high))).to_batch(schema, include_deleted)
        if batch.num_rows:
            yield batch


def read_block_range(
    source: Source | str | os.PathLike[str] | bytes,
    offset: int,
    length: int,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    include_deleted: bool = False,
) -> pa.Table:
    """Return the entries of the blocks in a range (a GroupHandle's offset and length), without a footer: one range
    read. `schema`: of the value columns, with which the file was written. Raise CorruptionError if the range does not
    contain whole blocks of that schema."""
    schema = check_schema(schema)
    if offset < 0 or length < 0:
        raise InvalidArgumentError(f"there is no range of {length} bytes at {offset}: give a GroupHandle's")
    positions = column_positions(schema, columns)
    opened, is_owned = open_source(source)
    try:
        view = read_exact(opened, [(offset, length)])[0]
    finally:
        if is_owned:
            close_source(opened)
    batch_schema = scan_schema(schema, positions, include_deleted)
    batches, position = [], 0
    while position < length:
        block = Block(view[position:], Location(name_of(opened), offset + position), schema)
        batches.append(block_entries(block, positions).to_batch(batch_schema, include_deleted))
        position += block.length_bytes
    return pa.Table.from_batches(batches, batch_schema)


def block_entries(block: Block, positions: Sequence[int], rows: Rows | None = None) -> Entries:
    """Return the entries of a block, or those at `rows`, with the columns at `positions`. Raise CorruptionError."""
    deleted = block.deleted()
    if rows is None or (isinstance(rows, slice) and rows == slice(0, block.entries)):
        return Entries(block.keys.to_arrow(), [block.column(p).to_arrow() for p in positions], deleted)
    keys = block.keys.to_arrow()
    keys = keys[rows] if isinstance(rows, slice) else keys.take(from_numpy(rows))
    return Entries(keys, [block.column(p).take(rows) for p in positions], None if deleted is None else deleted[rows])
