"""What a reader does by way of a cache: look-ups and scans of blocks that are held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..arrays import from_numpy
from ..errors import CorruptionError
from .batches import scan_schema
from .block import Block
from .cache import Shelf
from .entries import Entries
from .held import PYTHON_FORMATS, FlatKeys, HeldBlock, as_python, row_in
from .keys import find_key
from .values import Column

if TYPE_CHECKING:
    from .reader import SortedFileReader

# A block in which so many look-ups searched the encoded keys is looked up again, as like as not: then decoding all its
# keys pays. With fewer, blocks that are asked for once or twice would cost ten times what they must.
_TOUCHES_LEAST = 4
# Blocks that are fetched together, at most: so many may be held above what the cache holds.
_AT_ONCE_BLOCKS = 64


def get_row(reader: SortedFileReader, shelf: Shelf, i: int, key: bytes, names: Sequence[str]) -> dict | None:
    """What `SortedFileReader.get` gives of a key that may be in block i."""
    held = shelf.find(i)
    if held is None:
        block = reader.block(i)
        found = row_of(block, key, names)
        shelf.add(i, HeldBlock(block.owned())).touches += 1
        return found
    rows = held.row
    if rows is None:
        if not is_flat(shelf, i, held, 1):
            with unheld_if_damaged(shelf, i, held):
                return row_of(held.block, key, names)
        for position in range(len(names)):
            flat_column(shelf, i, held, position)
        rows = shelf.keep_rows(i, held, held.rows())
    return row_in(rows, key, names, None)


@contextmanager
def unheld_if_damaged(shelf: Shelf, i: int, held: HeldBlock) -> Iterator[None]:
    """A block is held once its head was found sound. Damage of a section shows when that is decoded: then the block
    must not stay, or it would answer for a file that was mended."""
    try:
        yield
    except CorruptionError:
        shelf.remove(i, held)
        raise


def is_flat(shelf: Shelf, i: int, held: HeldBlock, wanted: int) -> bool:
    """Whether the keys of block i are decoded, now that so many more are looked for in it."""
    if held.keys is None:
        held.touches += wanted
        if held.touches < _TOUCHES_LEAST:
            return False
        flat_keys(shelf, i, held)
    return True


def find_flat(held: HeldBlock, wanted: Sequence[bytes]) -> np.ndarray:
    """int64 [k]: where some keys are in a block whose keys are decoded, -1 where they are not there."""
    assert held.keys is not None
    return np.array([held.keys.find(key) for key in wanted], dtype=np.int64)


def flat_entries(shelf: Shelf, i: int, held: HeldBlock, positions: Sequence[int], rows: np.ndarray) -> Entries:
    """The entries at int64 `rows` of block i, whose keys are decoded; without keys."""
    assert held.keys is not None
    columns = []
    for position in positions:
        flat_column(shelf, i, held, position)
        columns.append(held.columns[position].array.take(from_numpy(rows)))
    deleted = held.keys.deleted
    return Entries(pa.nulls(len(rows), pa.binary()), columns, None if deleted is None else deleted[rows])


def flat_keys(shelf: Shelf, i: int, held: HeldBlock) -> FlatKeys:
    """The keys of block i, decoded now if they were not."""
    keys = held.keys
    if keys is None:
        with unheld_if_damaged(shelf, i, held):
            decoded = held.flat_keys()
        shelf.keep_keys(i, held, decoded)
        keys = held.keys
        assert keys is not None
    return keys


def flat_column(shelf: Shelf, i: int, held: HeldBlock, position: int) -> None:
    """Decodes a column of block i, if it was not."""
    if position not in held.columns:
        with unheld_if_damaged(shelf, i, held):
            decoded = held.flat_column(position)
        shelf.keep_column(i, held, position, decoded)


def scan_batches(
    reader: SortedFileReader,
    shelf: Shelf,
    blocks: Sequence[int],
    start: bytes,
    stop: bytes | None,
    positions: Sequence[int],
    include_deleted: bool,
) -> Iterator[pa.RecordBatch]:
    """What a scan of some blocks gives, a batch a block, over the memory that the cache holds."""
    schema = scan_schema(reader.schema, positions, include_deleted)
    for i, held in held_blocks(reader, shelf, blocks):
        keys = flat_keys(shelf, i, held)
        for position in positions:
            flat_column(shelf, i, held, position)
        low = keys.lower_bound(start) if i == blocks[0] and start else 0
        high = keys.lower_bound(stop) if i == blocks[-1] and stop is not None else held.entries
        if low < high:
            batch = held.batch(positions, schema, include_deleted, low, high)
            if batch.num_rows:
                yield batch


def held_blocks(reader: SortedFileReader, shelf: Shelf, numbers: Sequence[int]) -> Iterator[tuple[int, HeldBlock]]:
    """Blocks with their numbers, which ascend: those that the cache holds, and others, which are read ahead together
    and which it holds from now on."""
    for at in range(0, len(numbers), _AT_ONCE_BLOCKS):
        some = numbers[at : at + _AT_ONCE_BLOCKS]
        there = shelf.find_all(some)
        missing = [i for i, held in zip(some, there, strict=True) if held is None]
        read = reader.iter_blocks(missing)
        for i, held in zip(some, there, strict=True):
            yield i, shelf.add(i, HeldBlock(next(read).owned())) if held is None else held


def row_of(block: Block, key: bytes, names: Sequence[str]) -> dict | None:
    """The values of a key in a block, as Python objects; None where it is not there. Only what is asked is decoded."""
    at = find_key(block.keys, key)
    if at < 0:
        return None
    deleted = block.deleted()
    if deleted is not None and deleted[at]:
        return None
    return {name: _value_at(block.column(position), at) for position, name in enumerate(names)}


def _value_at(column: Column, at: int) -> object:
    """A value as a Python object. One of integers, or of floats that lie plain, is read as it lies."""
    form = PYTHON_FORMATS.get(column.kind)
    if form is None or (column.line is None and column.fixed is None):
        return as_python(column.take(slice(at, at + 1))[0])
    if column.valid is not None and not column.valid[at]:
        return None
    if column.fixed is not None:
        return form.unpack(column.fixed[at])[0]
    assert column.line is not None
    return form.unpack(column.line.at(at).to_bytes(8, "little")[: form.size])[0]
