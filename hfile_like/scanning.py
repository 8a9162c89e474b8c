"""Whole blocks as few batches: a scan decodes about a megabyte at once, and not block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from .batches import block_entries, to_batch
from .block import SECTION_BYTES_MAX, Block
from .column_runs import joined_column, joined_keys
from .entries import Entries
from .strings import checked_text

# Of stored bytes: decoded they are up to a few times as many, which still fit the processor's last cache.
BATCH_STORED_BYTES = 1 << 19
BATCH_BLOCKS = 64


def runs_of(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Neighbours that make one batch."""
    run: list[Block] = []
    size = 0
    for block in blocks:
        if run and (size + block.length_bytes > BATCH_STORED_BYTES or len(run) == BATCH_BLOCKS):
            yield run
            run, size = [], 0
        run.append(block)
        size += block.length_bytes
    if run:
        yield run


def run_batch(
    blocks: Sequence[Block], positions: Sequence[int], schema: pa.Schema, include_deleted: bool, low: int, high: int
) -> pa.RecordBatch:
    """The entries of some blocks, with the columns at `positions`: from entry `low` of the first, before entry `high`
    of the last."""
    if len(blocks) == 1:
        rows = None if low == 0 and high == blocks[0].entries else slice(low, max(low, high))
        return to_batch(block_entries(blocks[0], positions, rows), schema, include_deleted)
    counts = [block.entries for block in blocks]
    keys = joined_keys([block.encoded(1) for block in blocks], counts, SECTION_BYTES_MAX)
    if keys is None:
        keys = pa.concat_arrays([block.keys.to_arrow() for block in blocks])
    columns = [_column(blocks, counts, position) for position in positions]
    entries = Entries(keys, columns, _deleted(blocks))
    stop = len(entries) - counts[-1] + high
    if low or stop < len(entries):
        entries = entries.slice(low, stop - low)
    return to_batch(entries, schema, include_deleted)


def _column(blocks: Sequence[Block], counts: Sequence[int], position: int) -> pa.Array:
    kind = blocks[0].schema.field(position).type
    found = joined_column(kind, [block.encoded(2 + position) for block in blocks], counts, SECTION_BYTES_MAX)
    if found is None:
        return pa.concat_arrays([block.column(position).to_arrow() for block in blocks])
    return checked_text(found, blocks[0].where)


def _deleted(blocks: Sequence[Block]) -> np.ndarray | None:
    parts = [block.deleted() for block in blocks]
    if all(part is None for part in parts):
        return None
    return np.concatenate(
        [np.zeros(b.entries, bool) if part is None else part for b, part in zip(blocks, parts, strict=True)]
    )
