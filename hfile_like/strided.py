"""Strided sections: rows of one length, uncompressed, each followed by its own checksum.

Row i lies at `offset + i * (stride + 4)`: any of them is one range read, with no footer and nothing resident. A row's
checksum is bound to the row's place, so one flipped bit, or a row of another place, is found where it is read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidArgumentError
from .codec import Where, place_crcs
from .source import COALESCE_GAP_BYTES, Source, name_of, read_exact

CHECKSUM_BYTES = 4
STRIDE_BYTES_MAX = 1 << 28


@dataclass(frozen=True)
class StridedSection:
    """Where a strided section lies: small and picklable, it is all that a reader of rows needs.

    offset   of row 0, in bytes
    rows     how many
    stride   bytes of a row, its checksum not counted
    """

    name: str
    offset: int
    rows: int
    stride: int

    @property
    def length_bytes(self) -> int:
        """Bytes of the section, checksums included."""
        return self.rows * (self.stride + CHECKSUM_BYTES)


def row_checksums(rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """uint32 [n]: the checksums of the rows of uint8 [n, stride] that lie at `offsets`."""
    crc32 = zlib.crc32
    return np.fromiter((crc32(row) for row in rows), dtype=np.uint32, count=len(rows)) ^ place_crcs(offsets)


def encode_rows(rows: np.ndarray, offset: int) -> bytes:
    """The stored bytes of uint8 [n, stride] rows, the first of which will lie at `offset`."""
    count, stride = rows.shape
    step = stride + CHECKSUM_BYTES
    out = np.empty((count, step), dtype=np.uint8)
    out[:, :stride] = rows
    sums = row_checksums(np.ascontiguousarray(rows), offset + np.arange(count, dtype=np.uint64) * np.uint64(step))
    out[:, stride:] = sums.astype("<u4").view(np.uint8).reshape(count, CHECKSUM_BYTES)
    return out.tobytes()


def row_chunks(rows: np.ndarray | Iterable[np.ndarray], stride: int) -> Iterable[np.ndarray]:
    """Chunks of rows, each checked to be uint8 [n, stride]. Raises InvalidArgumentError."""
    for chunk in [rows] if isinstance(rows, np.ndarray) else rows:
        if not isinstance(chunk, np.ndarray) or chunk.dtype != np.uint8 or chunk.ndim != 2 or chunk.shape[1] != stride:
            shape = getattr(chunk, "shape", None)
            kind = getattr(chunk, "dtype", type(chunk).__name__)
            raise InvalidArgumentError(f"strided rows must be uint8 [n, {stride}], not {kind} {shape}")
        yield chunk


def read_strided_rows(
    source: Source,
    section: StridedSection,
    indices: Sequence[int] | np.ndarray,
    gap_bytes: int = COALESCE_GAP_BYTES,
) -> np.ndarray:
    """uint8 [k, stride]: the rows at `indices` (any order, repeats allowed), in that order; only their ranges are
    read, those closer than `gap_bytes` as one. Raises CorruptionError for a row that fails its checksum,
    InvalidArgumentError for an index that is not there."""
    wanted = np.asarray(indices)
    if wanted.ndim != 1 or (wanted.dtype.kind not in "iu" and len(wanted)):
        raise InvalidArgumentError("row indices must be integers, in one dimension")
    if len(wanted) == 0:
        return np.empty((0, section.stride), dtype=np.uint8)
    if int(wanted.min()) < 0 or int(wanted.max()) >= section.rows:
        raise InvalidArgumentError(
            f"strided section {section.name!r} has rows 0 to {section.rows - 1}, not {int(wanted.min())} to "
            f"{int(wanted.max())}"
        )
    unique, back = np.unique(wanted.astype(np.int64), return_inverse=True)
    step = section.stride + CHECKSUM_BYTES
    breaks = np.flatnonzero((np.diff(unique) - 1) * step > gap_bytes) + 1
    runs = np.split(unique, breaks)
    ranges = [(section.offset + int(r[0]) * step, int(r[-1] - r[0] + 1) * step) for r in runs]
    parts = read_exact(source, ranges, gap_bytes=0)
    stored = np.empty((len(unique), step), dtype=np.uint8)
    at = 0
    for run, part in zip(runs, parts, strict=True):
        table = np.frombuffer(part, dtype=np.uint8).reshape(-1, step)
        stored[at : at + len(run)] = table if len(table) == len(run) else table[run - run[0]]
        at += len(run)
    rows = np.ascontiguousarray(stored[:, : section.stride])
    offsets = np.uint64(section.offset) + unique.astype(np.uint64) * np.uint64(step)
    sums = np.ascontiguousarray(stored[:, section.stride :]).view("<u4").reshape(-1)
    wrong = np.flatnonzero(row_checksums(rows, offsets) != sums)
    if len(wrong):
        first = int(unique[wrong[0]])
        where = Where(name_of(source), section.offset + first * step)
        raise where.bad("row checksum", f"row {first} of strided section {section.name!r} fails its checksum")
    return rows if np.array_equal(unique, wanted) else rows[back.reshape(-1)]
