"""What executors do for `cluster`: sample rows, deal them out to the files that they belong to, write the files.

Rows cross Spark's shuffle not one by one but many together, as Arrow streams. So Spark converts nothing, every value
arrives as it was read, and Spark moves and sorts few large values. A piece holds rows of one bucket (see
`engine.clustering`). Buckets come to the writer in order; each is sorted when it is complete, so no more than one is in
memory, however many rows a file has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import from_numpy
from ..engine.clustering import Placement, RowOrder, sorted_by
from ..engine.scan.file_reader import read_matches
from ..engine.scan.file_tasks import ReadContext, RowGroups
from ..engine.storage import Counted, open_storage
from ..engine.tasks.spec import TaskSpec
from ..engine.tasks.writer import TaskWriter
from .jobs import from_ipc, parts_in, result_row, to_ipc
from .shares import Share, groups_of_share

PIECES_SCHEMA = "lane int, bucket int, partition string, rows binary"
_BATCH_ROWS = 1 << 16
_DEALT_BYTES = 64 << 20  # rows that wait to be dealt out together
_PIECE_ROWS = 1 << 16
_SENT_BYTES = 8 << 20  # pieces that are handed to Spark at once
_SAMPLED_LENGTH = 256  # characters, or bytes, of a value: enough to place it
_ARROW_PIECES = pa.schema(
    [
        pa.field("lane", pa.int32()),
        pa.field("bucket", pa.int32()),
        pa.field("partition", pa.string()),
        pa.field("rows", pa.binary()),
    ]
)


@dataclass(frozen=True)
class FileShare:
    """The share of one file, and the partition of the table that it lies in: a number for this job, and its text."""

    share: Share
    number: int
    partition: str


@dataclass(frozen=True)
class SampleRows:
    """Takes about the fraction `rate` of the rows of some files; the same rows whenever it runs."""

    context: ReadContext
    rate: float

    def __call__(self, part: list[FileShare]) -> dict[int, pa.Table]:
        """The sampled rows by partition."""
        sampled: dict[int, list[pa.Table]] = {}
        draws: dict[str, np.random.Generator] = {}
        for file, rows in _rows_of(part, self.context):
            path = file.share.task.path
            draw = draws.setdefault(path, np.random.default_rng([zlib.crc32(path.encode()), file.share.number]))
            chosen = np.flatnonzero(draw.random(rows.num_rows) < self.rate)
            sampled.setdefault(file.number, []).append(_shortened(rows.take(from_numpy(chosen))))
        return {number: pa.concat_tables(tables).combine_chunks() for number, tables in sampled.items()}


@dataclass(frozen=True)
class DealRows:
    """Deals the rows of some files out to buckets."""

    context: ReadContext
    order: RowOrder
    placement: Placement

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pieces of the rows of the parts that came, which are lists of FileShare, as PIECES_SCHEMA has them."""
        for _, part in parts_in(batches):
            texts: dict[int, str] = {}
            waiting: list[tuple[pa.Table, np.ndarray]] = []
            waiting_bytes = dealt = 0
            for file, rows in _rows_of(part, self.context):
                buckets = self.placement.buckets_of(file.number, self.order.keys(rows), dealt)
                texts.update(dict.fromkeys(np.unique(buckets).tolist(), file.partition))
                dealt += rows.num_rows
                waiting.append((rows, buckets))
                waiting_bytes += rows.nbytes
                if waiting_bytes > _DEALT_BYTES:
                    yield from self._pieces(waiting, texts)
                    waiting, waiting_bytes = [], 0
                    texts.clear()
            if waiting:
                yield from self._pieces(waiting, texts)

    def _pieces(self, waiting: list[tuple[pa.Table, np.ndarray]], texts: dict[int, str]) -> Iterator[pa.RecordBatch]:
        buckets = np.concatenate([numbers for _, numbers in waiting])
        order = np.argsort(buckets, kind="stable")
        rows = pa.concat_tables([table for table, _ in waiting]).take(from_numpy(order))
        present, starts = np.unique(buckets[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        pieces: list[tuple[int, bytes]] = []
        for bucket, start, end in zip(present.tolist(), starts.tolist(), ends, strict=True):
            for first in range(start, end, _PIECE_ROWS):
                pieces.append((bucket, to_ipc(rows.slice(first, min(_PIECE_ROWS, end - first)), "lz4")))
                if sum(len(data) for _, data in pieces) > _SENT_BYTES:
                    yield self._batch(pieces, texts)
                    pieces = []
        if pieces:
            yield self._batch(pieces, texts)

    def _batch(self, pieces: list[tuple[int, bytes]], texts: dict[int, str]) -> pa.RecordBatch:
        columns = [
            pa.array([int(self.placement.lanes[bucket]) for bucket, _ in pieces], pa.int32()),
            pa.array([bucket for bucket, _ in pieces], pa.int32()),
            pa.array([texts[bucket] for bucket, _ in pieces], pa.string()),
            pa.array([data for _, data in pieces], pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_ARROW_PIECES)


@dataclass(frozen=True)
class WriteRows:
    """Writes the rows of one lane, whose pieces come ordered by bucket."""

    spec: TaskSpec
    order: RowOrder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row of `RESULT_SCHEMA`: the lane, and what its TaskWriter made; none where no rows came."""
        lane = None
        with TaskWriter(self.spec) as task:
            pending: list[pa.Table] = []
            current: tuple[int, str] | None = None
            for batch in batches:
                for piece in batch.to_pylist():
                    lane, bucket = piece["lane"], (piece["bucket"], piece["partition"])
                    if current is not None and bucket != current:
                        self._write(task, current[1], pending)
                        pending = []
                    current = bucket
                    pending.append(from_ipc(piece["rows"]))
            if current is not None:
                self._write(task, current[1], pending)
        if lane is not None:
            yield result_row(lane, task.result)

    def _write(self, task: TaskWriter, partition: str, tables: list[pa.Table]) -> None:
        rows = pa.concat_tables(tables)
        task.write_to(partition, rows.take(from_numpy(sorted_by(self.order.keys(rows)))))


def _rows_of(part: list[FileShare], context: ReadContext) -> Iterator[tuple[FileShare, pa.Table]]:
    """All rows of some files, in tables of bounded size."""
    data = Counted(open_storage(context.location, context.storage_options))
    for file in part:
        groups = groups_of_share(file.share, RowGroups(None), data)
        for rows in read_matches(file.share.task, groups, context, data):
            for first in range(0, rows.num_rows, _BATCH_ROWS):
                yield file, rows.slice(first, _BATCH_ROWS)


def _shortened(rows: pa.Table) -> pa.Table:
    """The rows with long strings and binaries cut short, in the same types."""
    for i, field in enumerate(rows.schema):
        kind, column = field.type, rows.column(i)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column = pc.utf8_slice_codeunits(column, 0, _SAMPLED_LENGTH)
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            column = pc.binary_slice(column, 0, _SAMPLED_LENGTH)
        rows = rows.set_column(i, field, column)
    return rows
