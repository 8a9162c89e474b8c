"""Row tables: rows of one length, each followed by its own checksum, so that any row is one range read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import InvalidArgumentError
from . import codec
from .codec import Location
from .footer import CHECKSUM_BYTES, RowTable
from .source import COALESCE_GAP_BYTES, Source, name_of, read_exact


def stored_rows(rows: np.ndarray, offset: int) -> bytes:
    """Return the stored bytes of uint8 [n, stride] rows, the first of which is written at `offset`."""
    count, stride = rows.shape
    step = stride + CHECKSUM_BYTES
    out = np.empty((count, step), dtype=np.uint8)
    out[:, :stride] = rows
    sums = codec.row_checksums(np.ascontiguousarray(rows), offset + np.arange(count, dtype=np.uint64) * np.uint64(step))
    out[:, stride:] = sums.astype("<u4").view(np.uint8).reshape(count, CHECKSUM_BYTES)
    return out.tobytes()


def row_chunks(rows: np.ndarray | Iterable[np.ndarray], stride: int) -> Iterable[np.ndarray]:
    """Yield chunks of rows, each checked to be uint8 [n, stride]. Raise InvalidArgumentError."""
    for chunk in [rows] if isinstance(rows, np.ndarray) else rows:
        if not isinstance(chunk, np.ndarray) or chunk.dtype != np.uint8 or chunk.ndim != 2 or chunk.shape[1] != stride:
            shape = getattr(chunk, "shape", None)
            dtype = getattr(chunk, "dtype", type(chunk).__name__)
            raise InvalidArgumentError(f"rows of a table must be uint8 [n, {stride}], not {dtype} {shape}")
        yield chunk


def read_rows(
    source: Source, section: RowTable, indices: Sequence[int] | np.ndarray, gap_bytes: int = COALESCE_GAP_BYTES
) -> np.ndarray:
    """Return uint8 [k, stride]: the rows at `indices` (any order, repeats allowed), in that order. Only their ranges
    are read; rows closer than `gap_bytes` are one range. Raise CorruptionError for a row that fails its checksum,
    InvalidArgumentError for an index that does not exist."""
    return read_rows_of_tables(source, [(section, indices)], gap_bytes)[0]


def read_rows_of_tables(
    source: Source,
    wanted: Sequence[tuple[RowTable, Sequence[int] | np.ndarray]],
    gap_bytes: int = COALESCE_GAP_BYTES,
) -> list[np.ndarray]:
    """Return the result of `read_rows` for each of some sections of one file, in one request to the source."""
    requests = [_RowRequest(section, _checked(section, indices), gap_bytes) for section, indices in wanted]
    parts = iter(read_exact(source, [one for each in requests for one in each.ranges], gap_bytes))
    return [each.rows([next(parts) for _ in each.ranges], source) for each in requests]


def _checked(section: RowTable, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    wanted = np.asarray(indices)
    if wanted.ndim != 1 or (wanted.dtype.kind not in "iu" and len(wanted)):
        raise InvalidArgumentError("row indices must be integers, in one dimension")
    if len(wanted) and (int(wanted.min()) < 0 or int(wanted.max()) >= section.rows):
        raise InvalidArgumentError(
            f"row table {section.name!r} has rows 0 to {section.rows - 1}, not {int(wanted.min())} to "
            f"{int(wanted.max())}"
        )
    return wanted.astype(np.int64)


class _RowRequest:
    """Some rows of one section: the ranges that contain them, and the rows from the bytes of these."""

    def __init__(self, section: RowTable, wanted: np.ndarray, gap_bytes: int):
        self._section, self._wanted = section, wanted
        self._unique, self._back = np.unique(wanted, return_inverse=True)
        self._step = section.stride + CHECKSUM_BYTES
        breaks = np.flatnonzero((np.diff(self._unique) - 1) * self._step > gap_bytes) + 1
        self._runs = np.split(self._unique, breaks) if len(wanted) else []
        self.ranges = [
            (section.offset + int(r[0]) * self._step, int(r[-1] - r[0] + 1) * self._step) for r in self._runs
        ]

    def rows(self, parts: Sequence[memoryview], source: Source) -> np.ndarray:
        section, step, unique = self._section, self._step, self._unique
        stored = np.empty((len(unique), step), dtype=np.uint8)
        offset = 0
        for run, part in zip(self._runs, parts, strict=True):
            table = np.frombuffer(part, dtype=np.uint8).reshape(-1, step)
            stored[offset : offset + len(run)] = table if len(table) == len(run) else table[run - run[0]]
            offset += len(run)
        rows = np.ascontiguousarray(stored[:, : section.stride])
        offsets = np.uint64(section.offset) + unique.astype(np.uint64) * np.uint64(step)
        sums = np.ascontiguousarray(stored[:, section.stride :]).view("<u4").reshape(-1)
        wrong = np.flatnonzero(codec.row_checksums(rows, offsets) != sums)
        if len(wrong):
            first = int(unique[wrong[0]])
            location = Location(name_of(source), section.offset + first * step)
            message = f"row {first} of row table {section.name!r} fails its checksum"
            raise location.corruption("row checksum", message)
        return rows if np.array_equal(unique, self._wanted) else rows[self._back.reshape(-1)]
