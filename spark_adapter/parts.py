"""What the parts of a job are, and how they reach executors: as rows of its plan, or by a file in storage."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ..engine.storage import StorageOptions, open_storage
from ..errors import CorruptionError, SkipstoneError

_INLINE_BYTES = 4 << 20  # parts of fewer bytes in all travel with the plan
_DIGEST_BYTES = 32
PART_SCHEMA = "number long, part binary, offset long, size long, digest binary"
ARROW_PARTS = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("part", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("digest", pa.binary()),
    ]
)


@dataclass(frozen=True)
class Spill:
    """Where large parts lie for the length of a job: one file, in a storage that executors can open.

    Whoever may write to that storage may change the file. So a part is an Arrow table, its place and its BLAKE2 digest
    travel over Spark's own channel, and bytes with another digest are decoded by nobody.
    """

    location: str
    path: str
    options: StorageOptions

    def write(self, parts: Iterable[bytes]) -> pa.Table:
        """Writes encoded parts, one at a time; returns their places, as rows of `ARROW_PARTS`."""
        places: list[tuple[int, int, bytes]] = []
        offset = 0
        with open_storage(self.location, self.options).create(self.path) as file:
            for data in parts:
                file.write(data)
                places.append((offset, len(data), _digest(data)))
                offset += len(data)
        return pa.Table.from_arrays(
            [
                pa.array(range(len(places)), pa.int64()),
                pa.nulls(len(places), pa.binary()),
                pa.array([start for start, _, _ in places], pa.int64()),
                pa.array([size for _, size, _ in places], pa.int64()),
                pa.array([digest for _, _, digest in places], pa.binary()),
            ],
            schema=ARROW_PARTS,
        )

    def read(self, offset: int, size: int, digest: bytes) -> pa.Table:
        """One part. Raises CorruptionError where the file does not hold what was written, StorageError where it cannot
        be read."""
        (data,) = open_storage(self.location, self.options).read_ranges(self.path, [(offset, size)])
        if len(data) != size or _digest(data) != digest:
            raise CorruptionError(
                "a part of a running job is not what the driver wrote: another process changed the file; run it again",
                path=self.path,
                offset=offset,
                check="digest",
            )
        return from_ipc(data)

    def remove(self) -> None:
        with contextlib.suppress(SkipstoneError):  # clean() removes it later
            open_storage(self.location, self.options).delete(self.path)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def part_rows(parts: Iterable[Any], spill: Spill | None, stack: contextlib.ExitStack) -> pa.Table:
    """The parts as rows of `ARROW_PARTS`: encoded, or, where they are too many bytes, their places in a file that is
    removed when the stack closes. They are encoded one by one: all of them never lie in memory."""
    encoded = (pickle.dumps(part) if spill is None else to_ipc(part) for part in parts)
    inline: list[bytes] = []
    size_bytes = 0
    for data in encoded:
        inline.append(data)
        size_bytes += len(data)
        if spill is not None and size_bytes > _INLINE_BYTES:
            stack.callback(spill.remove)
            return spill.write(_drained(inline, encoded))
    count = len(inline)
    columns = [pa.array(range(count), pa.int64()), pa.array(inline, pa.binary())]
    empty = [pa.nulls(count, field.type) for field in list(ARROW_PARTS)[len(columns) :]]
    return pa.Table.from_arrays([*columns, *empty], schema=ARROW_PARTS)


def _drained(first: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    while first:
        yield first.pop(0)
    yield from rest


def parts_in(batches: Iterable[pa.RecordBatch], spill: Spill | None = None) -> Iterator[Any]:
    """The parts that came to a task of `run_job`."""
    for batch in batches:
        for row in batch.to_pylist():
            yield part_in(row, spill)


def part_in(row: dict, spill: Spill | None) -> Any:
    if spill is None:
        return pickle.loads(row["part"])
    if row["part"] is not None:
        return from_ipc(row["part"])
    return spill.read(row["offset"], row["size"], row["digest"])


def split_evenly(weights: Sequence[float] | np.ndarray, parts: int) -> list[slice]:
    """Slices of a sequence, in order, at most `parts` of about the same weight, none empty. Weights are above 0."""
    sums = np.cumsum(weights)
    total = float(sums[-1]) if len(sums) else 0.0
    cuts = np.searchsorted(sums, np.arange(1, parts) * (total / parts)) + 1
    ends = sorted({0, len(sums), *(int(cut) for cut in cuts if cut < len(sums))})
    return [slice(low, high) for low, high in pairwise(ends)]


def to_ipc(rows: pa.Table, compression: str | None = None) -> bytes:
    """Rows as an Arrow stream; a pickle of a slice would hold all that it was cut from."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes) -> pa.Table:
    """The inverse of `to_ipc`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
