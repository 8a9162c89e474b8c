"""The filters of one file, made from the hashes of its row groups as they pass; and their sizes.

`fpp` is the rate of the finest level: how often a row group without a value may be read. A file of one row group has
one filter, among those of other files (`coarse_groups.py`). A file of several has a filter per row group, side by side
(`file_filter.py`), and one over the file, so that most files are excluded without a request to their own filters: at a
larger rate (`file_fpp`), since what it lets pass is tested again. So it takes about a third of the bits of the others.
A filter over a file whose own rate is above `USELESS_FPP` is not written.

Memory is bounded however large the files are: hashes and finished filters wait in a spool, a temporary file once they
are more than `SPOOL_BYTES`. Distinct values are counted exactly in a row group. In a file they are counted exactly up
to `_SAMPLE_MAX`, then by the hashes below a threshold, which are a sample because hashes are uniform.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from .... import bloom
from ....errors import InvalidArgumentError, StorageError

FPP_MIN, FPP_MAX, FPP_DEFAULT = 1e-6, 0.1, 0.001
USELESS_FPP = 0.3
FILE_BLOCKS_MAX = (64 << 20) // 32
SPOOL_BYTES = 16 << 20

_SAMPLE_MAX = 1 << 18
_AT_ONCE_BYTES = 8 << 20
_BLOCK_BYTES = 32


def checked_fpp(fpp: object) -> float:
    """The `fpp` that a caller gave. Raises InvalidArgumentError."""
    if isinstance(fpp, bool) or not isinstance(fpp, (int, float)) or not FPP_MIN <= fpp <= FPP_MAX:
        raise InvalidArgumentError(
            f"fpp is how often a row group without the value may be read, from {FPP_MIN:g} to {FPP_MAX:g}, not {fpp!r}"
        )
    return float(fpp)


def file_fpp(fpp: float) -> float:
    """The rate that the filter over a file of several row groups is sized for."""
    return min(fpp ** (1 / 3), 0.25)


class Spool:
    """Arrays that wait: in memory, or in a temporary file once they are many. A context manager."""

    def __init__(self) -> None:
        self._waiting: dict[int, np.ndarray] = {}
        self._waiting_bytes = 0
        self._stored: dict[int, tuple[int, np.dtype, int]] = {}  # offset in the file, type, number of bytes
        self._count = 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._waiting, self._stored = {}, {}
        if self._file is not None:
            with contextlib.suppress(OSError):  # what did not fit is needed no more
                self._file.close()

    def put(self, array: np.ndarray) -> int:
        """Keep a one-dimensional array; return its number. Raises StorageError if the temporary file is full."""
        self._waiting[self._count] = array
        self._waiting_bytes += array.nbytes
        self._count += 1
        if self._waiting_bytes > SPOOL_BYTES:
            self._write()
        return self._count - 1

    def read(self, number: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the items from start to stop of an array. Raises StorageError if the temporary file lacks them."""
        if number in self._waiting:
            return self._waiting[number][start:stop]
        offset, dtype, size_bytes = self._stored[number]
        end_bytes = size_bytes if stop is None else stop * dtype.itemsize
        assert self._file is not None
        with _refusals():
            self._file.seek(offset + start * dtype.itemsize)
            return np.frombuffer(self._file.read(end_bytes - start * dtype.itemsize), dtype)

    def drop(self, number: int) -> None:
        """Forget an array. The temporary file is emptied once nothing in it is needed."""
        if (array := self._waiting.pop(number, None)) is not None:
            self._waiting_bytes -= array.nbytes
        else:
            del self._stored[number]
            if not self._stored and self._file is not None:
                with _refusals():
                    self._file.truncate(0)

    def _write(self) -> None:
        with _refusals():
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="skipstone-")  # noqa: SIM115 - closed by `close`
            for number, array in self._waiting.items():
                offset = self._file.seek(0, io.SEEK_END)
                self._file.write(array.tobytes())
                self._stored[number] = offset, array.dtype, array.nbytes
            self._file.flush()
        self._waiting, self._waiting_bytes = {}, 0


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{tempfile.gettempdir()}: filters wait here in a temporary file: {error}") from error


class _DistinctCount:
    """Counts distinct hashes of which parts arrive one by one, each ascending without duplicates."""

    def __init__(self) -> None:
        self._sample = np.empty(0, dtype=np.uint64)
        self._share = 1.0  # of all hashes, those below the threshold

    def add(self, hashes: np.ndarray) -> None:
        self._sample = bloom.distinct(np.concatenate([self._sample, self._below(hashes)]))
        while len(self._sample) > _SAMPLE_MAX:
            self._share /= 2
            self._sample = self._below(self._sample)

    def _below(self, hashes: np.ndarray) -> np.ndarray:
        if self._share == 1:
            return hashes
        return hashes[: np.searchsorted(hashes, np.uint64(self._share * (1 << 64)))]

    def count(self) -> int:
        return round(len(self._sample) / self._share)


class FileFilters:
    """The filters of one file. Row groups are added one by one; `finish` builds the filters.

    row_groups    how many were added
    parts         once finished: (blocks, row groups) of each section of the finest level; empty if the filter over the
                  file is all there is
    """

    def __init__(self, fpp: float, spool: Spool):
        self.parts: list[tuple[int, list[int]]] = []
        self._over_file: int | None = None  # its number in the spool
        self._fpp, self._spool = fpp, spool
        self._counts: list[int] = []  # distinct values of each row group
        self._numbers: list[int] = []  # in the spool: of its hashes, once finished of its words
        self._distinct = _DistinctCount()

    @property
    def row_groups(self) -> int:
        return len(self._counts)

    @property
    def over_file(self) -> np.ndarray | None:
        """Once finished: the words of the filter over the file, uint32 [blocks, 8]; None if there is none."""
        return None if self._over_file is None else self._spool.read(self._over_file).reshape(-1, 8)

    def add(self, hashes: np.ndarray) -> None:
        """Add the hashes of the next row group, uint64 [n], duplicates allowed."""
        hashes = bloom.distinct(hashes)
        self._counts.append(len(hashes))
        self._numbers.append(self._spool.put(hashes))
        self._distinct.add(hashes)

    def finish(self) -> None:
        """Build the filters of all row groups."""
        over_file = self._empty_over_file()
        if self.row_groups > 1 or over_file is None:
            self.parts = bloom.plan_sizes([bloom.solve_blocks(count, self._fpp) for count in self._counts])
        blocks_of = {group: blocks for blocks, members in self.parts for group in members}
        for group, number in enumerate(self._numbers):
            hashes = self._spool.read(number)
            self._spool.drop(number)
            if over_file is not None:
                bloom.insert_hashes(over_file, hashes)
            if self.parts:
                words = np.zeros((blocks_of[group], 8), dtype=np.uint32)
                bloom.insert_hashes(words, hashes)
                self._numbers[group] = self._spool.put(words.reshape(-1))
        if over_file is not None and (not self.parts or bloom.measured_fpp(over_file) <= USELESS_FPP):
            self._over_file = self._spool.put(over_file.reshape(-1))

    def _empty_over_file(self) -> np.ndarray | None:
        """Words for the filter over the file, whose sizes are such that many files share a group."""
        if self.row_groups > 1:
            blocks = bloom.shared_blocks(bloom.solve_blocks(self._distinct.count(), file_fpp(self._fpp)), at_most=True)
        else:
            blocks = bloom.shared_blocks(bloom.solve_blocks(sum(self._counts), self._fpp))
        return None if blocks > FILE_BLOCKS_MAX else np.zeros((blocks, 8), dtype=np.uint32)

    def rows_of(self, blocks: int, members: Sequence[int]) -> Iterator[np.ndarray]:
        """The bucket rows of one part, uint8 [n, 32 x members], some at a time."""
        at_once = max(1, _AT_ONCE_BYTES // (_BLOCK_BYTES * len(members)))
        for start in range(0, blocks, at_once):
            stop = min(blocks, start + at_once)
            rows = np.empty((stop - start, len(members), 8), dtype=np.uint32)
            for place, member in enumerate(members):
                rows[:, place] = self._spool.read(self._numbers[member], 8 * start, 8 * stop).reshape(-1, 8)
            yield rows.reshape(stop - start, -1).view(np.uint8)
