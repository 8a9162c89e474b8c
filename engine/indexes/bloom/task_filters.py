"""The filters of one file, built from the hashes of its row groups as they pass; and their sizes.

`fpp` is the rate of the finest level: how often a row group without a value may be read. Row groups are members of
groups of filters of many files (`coarse_groups.py`): one read answers for all of them. A file of many row groups has
one filter over the file instead, if then fewer bytes are read (`has_file_level`). Its row groups' filters are then next
to each other (`file_filter.py`), and are read only if the file's filter matches. Its rate is larger (`file_fpp`),
because each match is tested again, so it needs about a third of the bits. It is not written if its rate exceeds
`USELESS_FPP`.

Memory is bounded for files of any size: hashes and finished filters are kept in a spool, a temporary file if they
exceed `SPOOL_BYTES`. Distinct values are counted exactly in a row group, and in a file up to `_SAMPLE_MAX`. Beyond,
they are estimated from the hashes below a threshold, which are a sample because hashes are uniform.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np

from .... import bloom
from ....errors import InvalidArgumentError, StorageError
from .coarse_groups import REQUEST_BYTES_LOCAL, WHOLE_FILE

FPP_MIN, FPP_MAX, FPP_DEFAULT = 1e-6, 0.1, 0.001
USELESS_FPP = 0.3
MEMBER_BLOCKS_MAX = (64 << 20) // 32
SPOOL_BYTES = 16 << 20

_SAMPLE_MAX = 1 << 18
_AT_ONCE_BYTES = 8 << 20
_BLOCK_BYTES = 32


def checked_fpp(fpp: object) -> float:
    """Return the caller's `fpp` as a float. Raise InvalidArgumentError if it is out of range."""
    if isinstance(fpp, bool) or not isinstance(fpp, (int, float)) or not FPP_MIN <= fpp <= FPP_MAX:
        raise InvalidArgumentError(
            f"fpp is how often a row group without the value may be read, from {FPP_MIN:g} to {FPP_MAX:g}, not {fpp!r}"
        )
    return float(fpp)


def file_fpp(fpp: float) -> float:
    """Return the target rate of the filter over a file."""
    return min(fpp ** (1 / 3), 0.25)


def has_file_level(row_groups: int, fpp: float) -> bool:
    """Return True if a filter over the file saves bytes in a look-up. With it, a look-up reads one block, and at its
    rate a request and a block per row group."""
    blocks_bytes = _BLOCK_BYTES * row_groups
    return _BLOCK_BYTES + file_fpp(fpp) * (REQUEST_BYTES_LOCAL + blocks_bytes) < blocks_bytes


class Spool:
    """Arrays that are kept in memory, or in a temporary file if they are large."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(SPOOL_BYTES, prefix="skipstone-")  # noqa: SIM115 - see `close`
        self._stored: list[tuple[int, np.dtype, int]] = []  # offset, type and number of items of each array

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the data is no longer needed
            self._file.close()

    def put(self, array: np.ndarray) -> int:
        """Keep a one-dimensional array; return its number. Raise StorageError if the temporary file is full."""
        with _refusals():
            self._stored.append((self._file.seek(0, io.SEEK_END), array.dtype, len(array)))
            self._file.write(array.data)
        return len(self._stored) - 1

    def read(self, number: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the items from start to stop of an array. Raise StorageError if the temporary file lacks them."""
        offset, dtype, count = self._stored[number]
        with _refusals():
            self._file.seek(offset + start * dtype.itemsize)
            return np.frombuffer(self._file.read(((count if stop is None else stop) - start) * dtype.itemsize), dtype)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{tempfile.gettempdir()}: filters wait here in a temporary file: {error}") from error


class FileFilters:
    """The filters of one file. Row groups are added one by one; `finish` builds the filters.

    row_groups    the number of added row groups
    parts         after `finish`: (blocks, row groups) of the filters of row groups of one size
    is_apart      after `finish`: its row groups are not members of groups of many files
    """

    def __init__(self, fpp: float, spool: Spool):
        self.parts: list[tuple[int, list[int]]] = []
        self._over_file: int | None = None  # its number in the spool
        self._fpp, self._spool = fpp, spool
        self._counts: list[int] = []  # distinct values of each row group
        self._numbers: list[int] = []  # in the spool: of its hashes, after `finish` of its words
        self.is_apart = False

    @property
    def row_groups(self) -> int:
        return len(self._counts)

    def add(self, hashes: np.ndarray) -> None:
        """Add the hashes of the next row group, uint64 [n], duplicates allowed."""
        hashes = bloom.distinct(hashes)
        self._counts.append(len(hashes))
        self._numbers.append(self._spool.put(hashes))

    def finish(self) -> None:
        """Build the filters of all row groups."""
        if not self._counts:
            self.add(np.empty(0, dtype=np.uint64))  # a file without row groups contains no value
        sizes = [bloom.solve_blocks(count, self._fpp) for count in self._counts]
        self.is_apart = max(sizes) > MEMBER_BLOCKS_MAX or has_file_level(self.row_groups, self._fpp)
        over_file = self._empty_over_file() if self.is_apart else None
        # The members of a group of many files have one of a few sizes.
        self.parts = bloom.plan_sizes(sizes if self.is_apart else list(map(bloom.shared_blocks, sizes)))
        blocks_of = {group: blocks for blocks, members in self.parts for group in members}
        for group, number in enumerate(self._numbers):
            hashes = self._spool.read(number)
            if over_file is not None:
                bloom.insert_hashes(over_file, hashes)
            words = np.zeros((blocks_of[group], 8), dtype=np.uint32)
            bloom.insert_hashes(words, hashes)
            self._numbers[group] = self._spool.put(words.reshape(-1))
        if over_file is not None and bloom.measured_fpp(over_file) <= USELESS_FPP:
            self._over_file = self._spool.put(over_file.reshape(-1))

    def _empty_over_file(self) -> np.ndarray | None:
        blocks = bloom.solve_blocks(self._distinct_count(), file_fpp(self._fpp))
        blocks = bloom.shared_blocks(blocks, at_most=True)
        return np.zeros((blocks, 8), dtype=np.uint32) if blocks <= MEMBER_BLOCKS_MAX else None

    def _distinct_count(self) -> int:
        """Return the number of distinct hashes of all row groups, exact or estimated; each row group's ascend."""
        sample, share = np.empty(0, dtype=np.uint64), 1.0  # hashes below this share of the range of hashes
        for number in self._numbers:
            sample = bloom.distinct(np.concatenate([sample, _below(self._spool.read(number), share)]))
            while len(sample) > _SAMPLE_MAX:
                share /= 2
                sample = _below(sample, share)
        return round(len(sample) / share)

    def members(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (row group, or -1 for the whole file; words, uint32 [blocks, 8]) for groups of many files."""
        if not self.is_apart:
            for group, number in enumerate(self._numbers):
                yield group, self._spool.read(number).reshape(-1, 8)
        elif self._over_file is not None:
            yield WHOLE_FILE, self._spool.read(self._over_file).reshape(-1, 8)

    def rows_of(self, blocks: int, members: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield the bucket rows of one part, uint8 [n, 32 x members], some at a time."""
        at_once = max(1, _AT_ONCE_BYTES // (_BLOCK_BYTES * len(members)))
        for start in range(0, blocks, at_once):
            stop = min(blocks, start + at_once)
            rows = np.empty((stop - start, len(members), 8), dtype=np.uint32)
            for place, member in enumerate(members):
                rows[:, place] = self._spool.read(self._numbers[member], 8 * start, 8 * stop).reshape(-1, 8)
            yield rows.reshape(stop - start, -1).view(np.uint8)


def _below(hashes: np.ndarray, share: float) -> np.ndarray:
    return hashes if share == 1 else hashes[: np.searchsorted(hashes, np.uint64(share * (1 << 64)))]
