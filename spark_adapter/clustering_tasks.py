"""What executors do for `cluster`: sample rows, deal them out to the files that they belong to, write the files.

Rows cross Spark's shuffle not one by one but many together, as Arrow streams. So Spark converts nothing, every value
arrives as it was read, and Spark moves and sorts few large values. A piece contains rows of one bucket (see
`engine.clustering`). Buckets arrive at the writer in order; each is sorted when it is complete, so no more than one is
in memory, however many rows a file has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import from_numpy
from ..engine.clustering import Placement, RowOrder, sorted_by
from ..engine.scan.file_reader import matches_in_file
from ..engine.scan.file_tasks import ReadContext, RowGroups
from ..engine.storage import Counted, open_storage
from ..engine.tasks.spec import TaskSpec
from ..engine.tasks.writer import TaskWriter
from .jobs import Batches, from_ipc, parts_in, result_row, to_ipc
from .shares import Share, groups_of_share

PIECES_SCHEMA = "lane int, bucket int, rows binary"
_BATCH_ROWS = 1 << 16
_DEALT_BYTES = 64 << 20  # rows that wait to be dealt out together
_PIECE_ROWS = 1 << 16
_SENT_BYTES = 8 << 20  # pieces that are passed to Spark together
_SAMPLED_LENGTH = 256  # characters, or bytes, of a value: enough to place it


FileShare: TypeAlias = tuple[Share, int]  # of one file, and the number of its partition


def sample_rows(part: Sequence[FileShare], context: ReadContext, rate: float) -> dict[int, pa.Table]:
    """About the fraction `rate` of the rows of some files, by partition; the same rows whenever it runs."""
    sampled: dict[int, list[pa.Table]] = {}
    for share, number in part:
        draw = np.random.default_rng([zlib.crc32(share.task.path.encode()), share.number])
        for rows in _rows_of(share, context):
            chosen = np.flatnonzero(draw.random(rows.num_rows) < rate)
            sampled.setdefault(number, []).append(_shortened(rows.take(from_numpy(chosen))))
    return {number: pa.concat_tables(tables).combine_chunks() for number, tables in sampled.items()}


def deal_rows(batches: Batches, context: ReadContext, order: RowOrder, placement: Placement) -> Batches:
    """Parts, which are lists of FileShare, to pieces of their rows, as PIECES_SCHEMA has them."""
    for _, part in parts_in(batches):
        waiting: list[tuple[pa.Table, np.ndarray]] = []
        waiting_bytes = dealt = 0
        for share, number in part:
            for rows in _rows_of(share, context):
                waiting.append((rows, placement.buckets_of(number, order.keys(rows), dealt)))
                dealt, waiting_bytes = dealt + rows.num_rows, waiting_bytes + rows.nbytes
                if waiting_bytes > _DEALT_BYTES:
                    yield from _pieces(waiting, placement)
                    waiting, waiting_bytes = [], 0
        if waiting:
            yield from _pieces(waiting, placement)


def _pieces(waiting: list[tuple[pa.Table, np.ndarray]], placement: Placement) -> Batches:
    buckets = np.concatenate([numbers for _, numbers in waiting])
    order = np.argsort(buckets, kind="stable")
    rows = pa.concat_tables([table for table, _ in waiting]).take(from_numpy(order))
    present, starts = np.unique(buckets[order], return_index=True)
    pieces: list[tuple[int, int, bytes]] = []
    for bucket, start, end in zip(present.tolist(), starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        for first in range(start, end, _PIECE_ROWS):
            data = to_ipc(rows.slice(first, min(_PIECE_ROWS, end - first)), "lz4")
            pieces.append((int(placement.lanes[bucket]), bucket, data))
            if sum(len(data) for *_, data in pieces) > _SENT_BYTES:
                yield _batch(pieces)
                pieces = []
    if pieces:
        yield _batch(pieces)


def _batch(pieces: list[tuple[int, int, bytes]]) -> pa.RecordBatch:
    kinds = (pa.int32(), pa.int32(), pa.binary())
    columns = [pa.array(values, kind) for values, kind in zip(zip(*pieces, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=["lane", "bucket", "rows"])


def write_lane(batches: Batches, spec: TaskSpec, order: RowOrder, placement: Placement, texts: list[str]) -> Batches:
    """The pieces of one lane, ordered by bucket, to one row of `RESULT_SCHEMA`: the lane, and the result of its
    TaskWriter; none if there are no rows. `texts`: of the partitions, by number."""
    lane = None
    with TaskWriter(spec) as task:
        pieces = (piece for batch in batches for piece in batch.to_pylist())
        for (lane, bucket), group in groupby(pieces, lambda piece: (piece["lane"], piece["bucket"])):  # noqa: B007
            rows = pa.concat_tables([from_ipc(piece["rows"]) for piece in group])
            sorted_rows = rows.take(from_numpy(sorted_by(order.keys(rows))))
            task.write_to(texts[placement.partition_of(bucket)], sorted_rows)
    if lane is not None:
        yield result_row(lane, task.result)


def _rows_of(share: Share, context: ReadContext) -> Iterator[pa.Table]:
    """All rows of a share, in tables of bounded size."""
    data = Counted(open_storage(context.location, context.storage_options))
    groups = groups_of_share(share, RowGroups(None), data)
    for _, rows in matches_in_file(share.task, groups, context, data):
        for first in range(0, rows.num_rows, _BATCH_ROWS):
            yield rows.slice(first, _BATCH_ROWS)


def _shortened(rows: pa.Table) -> pa.Table:
    """The rows with long strings and binaries cut short, in the same types."""
    for i, field in enumerate(rows.schema):
        kind = field.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            rows = rows.set_column(i, field, pc.utf8_slice_codeunits(rows.column(i), 0, _SAMPLED_LENGTH))
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            rows = rows.set_column(i, field, pc.binary_slice(rows.column(i), 0, _SAMPLED_LENGTH))
    return rows
