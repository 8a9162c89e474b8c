"""The executor's part of clustering: samples rows, deals them out to the files that they belong to, writes the files.

Rows cross Spark's shuffle not one by one but many together, as Arrow streams. So Spark converts nothing, every type and
every bit of them arrives as it was read, and what it moves and sorts are few large values. A piece holds rows of one
bucket (see `engine.clustering`). Buckets come to the writer in order; each is sorted when it is whole, so no more than
one is in memory, however many rows a file has.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import from_numpy
from ..engine.clustering import Placement, RowOrder, sorted_by
from ..engine.scan.rows import read_matches
from ..engine.scan.tasks import ReadContext, RowGroups
from ..engine.storage import Counted, open_storage
from ..engine.tasks.spec import TaskSpec
from ..engine.tasks.writer import TaskWriter
from .executor import own_groups
from .jobs import parts_in
from .packing import Share

PIECES_SCHEMA = "lane int, bucket int, partition string, rows binary"
WRITTEN_SCHEMA = "number long, result binary"
_BATCH_ROWS = 1 << 16
_DEALT_BYTES = 64 << 20  # rows that wait to be dealt out together
_PIECE_ROWS = 1 << 16
_SENT_BYTES = 8 << 20  # pieces that are handed to Spark at once
_SAMPLED_TEXT = 256  # characters, or bytes, of a value: its beginning tells where it belongs
_ARROW_PIECES = pa.schema(
    [
        pa.field("lane", pa.int32()),
        pa.field("bucket", pa.int32()),
        pa.field("partition", pa.string()),
        pa.field("rows", pa.binary()),
    ]
)


@dataclass(frozen=True)
class OfPartition:
    """What is read of one file, and which partition of the table it lies in: its number here, and its text."""

    share: Share
    number: int
    partition: str


@dataclass(frozen=True)
class Sampling:
    """Takes about `rate` of the rows of some files: always the same ones."""

    context: ReadContext
    rate: float

    def __call__(self, part: list[OfPartition]) -> dict[int, pa.Table]:
        """The sampled rows by partition."""
        taken: dict[int, list[pa.Table]] = {}
        draws: dict[str, np.random.Generator] = {}
        for of, rows in _rows_of(part, self.context):
            path = of.share.task.path
            draw = draws.setdefault(path, np.random.default_rng([zlib.crc32(path.encode()), of.share.number]))
            chosen = np.flatnonzero(draw.random(rows.num_rows) < self.rate)
            taken.setdefault(of.number, []).append(_begun(rows.take(from_numpy(chosen))))
        return {number: pa.concat_tables(tables).combine_chunks() for number, tables in taken.items()}


@dataclass(frozen=True)
class Dealing:
    """Deals the rows of some files out to buckets."""

    context: ReadContext
    order: RowOrder
    placement: Placement

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pieces of the rows of the parts that came, which are lists of OfPartition, as PIECES_SCHEMA has them."""
        for part in parts_in(batches):
            texts: dict[int, str] = {}
            waiting: list[tuple[pa.Table, np.ndarray]] = []
            waiting_bytes = dealt = 0
            for of, rows in _rows_of(part, self.context):
                buckets = self.placement.buckets_of(of.number, self.order.keys(rows), dealt)
                texts.update(dict.fromkeys(np.unique(buckets).tolist(), of.partition))
                dealt += rows.num_rows
                waiting.append((rows, buckets))
                waiting_bytes += rows.nbytes
                if waiting_bytes > _DEALT_BYTES:
                    yield from self._dealt(waiting, texts)
                    waiting, waiting_bytes = [], 0
                    texts.clear()
            if waiting:
                yield from self._dealt(waiting, texts)

    def _dealt(self, waiting: list[tuple[pa.Table, np.ndarray]], texts: dict[int, str]) -> Iterator[pa.RecordBatch]:
        buckets = np.concatenate([some for _, some in waiting])
        order = np.argsort(buckets, kind="stable")
        rows = pa.concat_tables([some for some, _ in waiting]).take(from_numpy(order))
        own, starts = np.unique(buckets[order], return_index=True)
        pieces: list[tuple[int, bytes]] = []
        for bucket, start, end in zip(own.tolist(), starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            for first in range(start, end, _PIECE_ROWS):
                pieces.append((bucket, _packed(rows.slice(first, min(_PIECE_ROWS, end - first)))))
                if sum(len(data) for _, data in pieces) > _SENT_BYTES:
                    yield self._sent(pieces, texts)
                    pieces = []
        if pieces:
            yield self._sent(pieces, texts)

    def _sent(self, pieces: list[tuple[int, bytes]], texts: dict[int, str]) -> pa.RecordBatch:
        columns = [
            pa.array([int(self.placement.lanes[bucket]) for bucket, _ in pieces], pa.int32()),
            pa.array([bucket for bucket, _ in pieces], pa.int32()),
            pa.array([texts[bucket] for bucket, _ in pieces], pa.string()),
            pa.array([data for _, data in pieces], pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_ARROW_PIECES)


@dataclass(frozen=True)
class Writing:
    """Writes the rows of one lane, whose pieces come ordered by bucket."""

    spec: TaskSpec
    order: RowOrder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row, as WRITTEN_SCHEMA has it: the lane, and what its TaskWriter made; none where no rows came."""
        lane = None
        with TaskWriter(self.spec) as task:
            held: list[pa.Table] = []
            at: tuple[int, str] | None = None
            for batch in batches:
                for piece in batch.to_pylist():
                    lane, here = piece["lane"], (piece["bucket"], piece["partition"])
                    if at is not None and here != at:
                        self._write(task, at[1], held)
                        held = []
                    at = here
                    held.append(_unpacked(piece["rows"]))
            if at is not None:
                self._write(task, at[1], held)
        if lane is not None:
            result = pickle.dumps(task.result)
            yield pa.RecordBatch.from_pydict({"number": pa.array([lane], pa.int64()), "result": pa.array([result])})

    def _write(self, task: TaskWriter, partition: str, held: list[pa.Table]) -> None:
        rows = pa.concat_tables(held)
        task.write_to(partition, rows.take(from_numpy(sorted_by(self.order.keys(rows)))))


def _rows_of(part: list[OfPartition], context: ReadContext) -> Iterator[tuple[OfPartition, pa.Table]]:
    """All rows of some files, some at a time."""
    data = Counted(open_storage(context.location, context.storage_options))
    for of in part:
        groups = own_groups(of.share, RowGroups(None), data)
        for rows in read_matches(of.share.task, groups, context, data):
            for first in range(0, rows.num_rows, _BATCH_ROWS):
                yield of, rows.slice(first, _BATCH_ROWS)


def _begun(rows: pa.Table) -> pa.Table:
    """The rows with long texts cut short, in the types that they have."""
    for at, field in enumerate(rows.schema):
        kind, column = field.type, rows.column(at)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column = pc.utf8_slice_codeunits(column, 0, _SAMPLED_TEXT)
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            column = pc.binary_slice(column, 0, _SAMPLED_TEXT)
        rows = rows.set_column(at, field, column)
    return rows


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(rows)
    return sink.getvalue().to_pybytes()


def _unpacked(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()
