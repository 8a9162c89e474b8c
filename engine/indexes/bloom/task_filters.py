"""The filters that a task makes, row group by row group: a fine one a file, and one over all of the task; their sizes.

With an `fpp`, each filter is the smallest that meets it. Without one, each is as large as pays over the life of a file:
its own bytes, and those that `lookups` look-ups read because of false positives. Every look-up probes a task's filter;
a false positive there costs a request and a small row for each file of the task, and those of its row groups that the
fine filters let pass. The fine filters see the look-ups whose value is in the task, taken to be one in ten: for each,
the other row groups with a false positive are read for nothing, at their bytes in the file.

Memory is bounded however large the files are. A row group's hashes are dropped once they are in its filter, and filters
of more than `SPOOL_BYTES` together wait in a temporary file. The task's hashes are kept while they are few
(`KEPT_KEYS_MAX`), and then go into a filter of the largest size, which is folded to the right one at the end: folding
is exact. Distinct values are counted: few by their hashes, many by the bits that they set in a filter that is large
enough for all of them, which is then folded. That costs nothing beside the inserting.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from .... import bloom
from ....errors import InvalidArgumentError, StorageError, is_integer

if TYPE_CHECKING:
    from ....bloom import SplitBlockFilter

# -- sizes ------------------------------------------------------------------------------------------------------------


LOOKUPS = 100
LOOKUPS_MAX = 10**12
REQUEST_BYTES = 256 << 10
"""What a request takes of the time that bytes take: about as long as so many of them."""

HIT_SHARE = 0.1
"""Of the look-ups that a task sees, those whose value it holds: only they probe the filters of its row groups."""

TASK_BLOCKS_MAX = (64 << 20) // 32
"""A task's filter that would be larger says yes to everything instead: its files' fine filters answer."""

_FINE_ROW_BYTES = 36
USELESS_FPP = 0.5


@dataclass(frozen=True)
class FilterSizing:
    """What the filters of one index are sized for.

    fpp        how often a row group without the value may be read all the same; None: what costs the least
    lookups    where `fpp` is None: how many look-ups a file sees in its life
    """

    fpp: float | None = None
    lookups: int = LOOKUPS

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> FilterSizing:
        """The sizing in an index's options."""
        return cls(options["fpp"], options.get("lookups", LOOKUPS))

    @classmethod
    def checked(cls, options: Mapping[str, Any]) -> FilterSizing:
        """The sizing in a caller's options. Raises InvalidArgumentError."""
        fpp, lookups = options.get("fpp"), options.get("lookups", LOOKUPS)
        if fpp is not None and (isinstance(fpp, bool) or not isinstance(fpp, (int, float)) or not 0 < fpp < 1):
            raise InvalidArgumentError(
                f"fpp is a probability above 0 and below 1, as 0.01, or left out for what costs the least, not {fpp!r}"
            )
        if not is_integer(lookups, 1) or lookups > LOOKUPS_MAX:
            raise InvalidArgumentError(
                f"lookups is how many look-ups a file sees in its life, from 1 to {LOOKUPS_MAX:,}, not {lookups!r}"
            )
        if fpp is not None and "lookups" in options:
            raise InvalidArgumentError("lookups= decides the size of filters where there is no fpp=: give one of them")
        return cls(None if fpp is None else float(fpp), lookups)

    def options(self) -> dict[str, Any]:
        """What an index keeps of it."""
        return {"fpp": self.fpp} if self.fpp is not None else {"fpp": None, "lookups": self.lookups}

    @classmethod
    def description(cls, options: Mapping[str, Any]) -> str:
        """The size of an index's filters and its reason, in words."""
        size = cls.of(options).reason()
        if options.get("source") != "parquet":
            return size
        return (
            f"copied from the Parquet files, at most as large as their writer made it; of what is written later, {size}"
        )

    def reason(self) -> str:
        """The size and its reason, in words, of filters that are made from values."""
        if self.fpp is not None:
            return f"sized for an fpp of {self.fpp:g}, as requested"
        return f"sized to cost the least bytes: its own, and what {self.lookups:,} look-ups a file read for nothing"

    def fine_blocks(self, keys: int, row_group_bytes: int) -> int:
        """The blocks of a row group's filter, of so many distinct values."""
        if self.fpp is not None:
            return bloom.solve_blocks(keys, self.fpp)
        return bloom.cheapest_blocks(keys, self.lookups * HIT_SHARE, row_group_bytes)

    def task_blocks(self, keys: int, false_bytes: float) -> int:
        """The blocks of a task's filter, of so many distinct values; `false_bytes`: see `task_false_bytes`. Where none
        of at most `TASK_BLOCKS_MAX` says anything, 1."""
        if self.fpp is not None:
            blocks = min(bloom.solve_blocks(keys, self.fpp), TASK_BLOCKS_MAX)
        else:
            blocks = min(bloom.cheapest_blocks(keys, self.lookups, false_bytes), TASK_BLOCKS_MAX)
        return 1 if bloom.fpp_of(keys, blocks) > USELESS_FPP else blocks

    def task_false_bytes(self, keys: Sequence[int], blocks: Sequence[int], row_group_bytes: Sequence[int]) -> float:
        """What is read of one file when its task's filter says yes for nothing: for each row group its distinct values,
        its filter's blocks and its bytes."""
        read = sum(bloom.fpp_of(n, b) * size for n, b, size in zip(keys, blocks, row_group_bytes, strict=True))
        return REQUEST_BYTES + _FINE_ROW_BYTES * len(blocks) + read


# -- filters of rows as they are written ------------------------------------------------------------------------------


SPOOL_BYTES = 16 << 20
KEPT_KEYS_MAX = 1 << 20

_SORTED_KEYS_MAX = 1 << 12
_COUNTING_BITS = 8  # a key, or more: with fewer, too few bits are left over to count by
_KEY_BITS_MAX = 32
_AT_ONCE_BYTES = 8 << 20
_BLOCK_BYTES = 32


class Spool:
    """Words of filters that wait: in memory, or in a temporary file once they are many. A context manager."""

    def __init__(self) -> None:
        self._waiting: list[np.ndarray | int] = []  # the words, or where they lie in the file
        self._waiting_bytes = 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._waiting = []
        if self._file is not None:
            with contextlib.suppress(OSError):  # what did not fit is needed no more
                self._file.close()

    def put(self, words: np.ndarray) -> int:
        """Keeps uint32 [blocks, 8]; returns its number. Raises StorageError where the temporary file takes no more."""
        self._waiting.append(words)
        self._waiting_bytes += words.nbytes
        if self._waiting_bytes > SPOOL_BYTES:
            self._write()
        return len(self._waiting) - 1

    def words(self, number: int, first: int, last: int) -> np.ndarray:
        """uint32 [last - first, 8]: some blocks of what was put. Raises StorageError where the temporary file does not
        give them back."""
        kept = self._waiting[number]
        if isinstance(kept, np.ndarray):
            return kept[first:last]
        assert self._file is not None
        with _refusals():
            self._file.seek(kept + _BLOCK_BYTES * first)
            data = self._file.read(_BLOCK_BYTES * (last - first))
        return np.frombuffer(data, dtype=np.uint32).reshape(-1, 8)

    def _write(self) -> None:
        with _refusals():
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="skipstone-")  # noqa: SIM115 - closed by `close`
            self._file.seek(0, io.SEEK_END)
            for number, kept in enumerate(self._waiting):
                if isinstance(kept, np.ndarray):
                    self._waiting[number] = self._file.tell()
                    self._file.write(kept.tobytes())
            self._file.flush()
        self._waiting_bytes = 0


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{tempfile.gettempdir()}: filters wait here in a temporary file: {error}") from error


class FineFilters:
    """The filters of one file's row groups.

    keys     distinct values of each row group
    sizes    the blocks of each
    parts    once finished: (blocks, row groups) of each section, as they are stored
    """

    def __init__(self, sizing: FilterSizing, spool: Spool):
        self.keys: list[int] = []
        self.sizes: list[int] = []
        self.parts: list[tuple[int, list[int]]] = []
        self._sizing, self._spool = sizing, spool
        self._built: list[tuple[int, int]] = []  # blocks as they were built, and the number in the spool
        self._sized_for: list[int] = []  # the bytes of the row group

    @property
    def row_groups(self) -> int:
        return len(self._built)

    def add(self, hashes: np.ndarray, row_group_bytes: int) -> np.ndarray:
        """Takes the hashes of the next row group, uint64, duplicates allowed; its bytes, or at least those. Returns the
        hashes, without duplicates where they are few."""
        if len(hashes) <= _SORTED_KEYS_MAX:
            hashes = bloom.distinct(hashes)
        blocks = self._sizing.fine_blocks(len(hashes), row_group_bytes)
        words, keys = _filled(hashes, blocks)
        self.add_words(words, keys, row_group_bytes)
        return hashes

    def add_words(self, words: np.ndarray, keys: int, row_group_bytes: int) -> None:
        """Takes the filter of the next row group, uint32 [power of two, 8], folded where it is larger than pays."""
        words = bloom.fold_words(words, min(len(words), self._sizing.fine_blocks(keys, row_group_bytes)))
        self.keys.append(keys)
        self.sizes.append(len(words))
        self._built.append((len(words), self._spool.put(words)))
        self._sized_for.append(row_group_bytes)

    def finish(self, row_group_bytes: Sequence[int]) -> float:
        """Settles the sizes, now that all row groups and their bytes are known. Returns what is read of the file when
        its task's filter says yes for nothing."""
        if not self._built:  # a file without row groups holds no value
            self.add_words(np.zeros((1, 8), dtype=np.uint32), 0, 0)
            row_group_bytes = [0]
        for place, (keys, size) in enumerate(zip(self.keys, row_group_bytes, strict=True)):
            if size != self._sized_for[place]:  # of a file that is being written, its bytes are known at its end
                self.sizes[place] = min(self.sizes[place], self._sizing.fine_blocks(keys, size))
        self.parts = bloom.plan_sizes(self.sizes)
        return self._sizing.task_false_bytes(self.keys, self.sizes, row_group_bytes)

    def words_of(self, row_group: int) -> np.ndarray:
        """uint32 [blocks, 8]: the filter of one row group, as it is stored."""
        return self._stretch(row_group, 0, self.sizes[row_group], self.sizes[row_group])

    def rows_of(self, blocks: int, members: Sequence[int]) -> Iterator[np.ndarray]:
        """The bucket rows of one part, uint8 [n, 32 x members], some at a time."""
        at_once = max(1, _AT_ONCE_BYTES // (_BLOCK_BYTES * len(members)))
        for start in range(0, blocks, at_once):
            stop = min(blocks, start + at_once)
            rows = np.empty((stop - start, len(members), 8), dtype=np.uint32)
            for place, member in enumerate(members):
                rows[:, place] = self._stretch(member, start, stop, blocks)
            yield rows.reshape(stop - start, -1).view(np.uint8)

    def _stretch(self, member: int, start: int, stop: int, blocks: int) -> np.ndarray:
        """Blocks from start to stop of a row group's filter, as it would be with so many blocks."""
        (built, number), size = self._built[member], self.sizes[member]
        repeats, folds = blocks // size, built // size
        first, last = start // repeats, -(-stop // repeats)
        words = bloom.fold_words(self._spool.words(number, first * folds, last * folds), last - first)
        return words[np.arange(start, stop) // repeats - first] if repeats > 1 else words


class TaskFilter:
    """The filter over everything that a task holds, while it is being made.

    Args:
        keys_max: more distinct values than there can be, where that is known.
    """

    def __init__(self, sizing: FilterSizing, keys_max: int | None = None):
        self._sizing = sizing
        self._keys_max = keys_max
        self._hashes: list[np.ndarray] = []
        self._count = 0
        self._words: np.ndarray | None = None
        self._false_bytes = 0.0

    def add(self, hashes: np.ndarray) -> None:
        """Takes some hashes, uint64, duplicates allowed."""
        if self._words is not None:
            bloom.insert_hashes(self._words, hashes)
            return
        self._hashes.append(hashes)
        self._count += len(hashes)
        if self._count > KEPT_KEYS_MAX:
            self._hashes = [bloom.distinct(np.concatenate(self._hashes))]
            self._count = len(self._hashes[0])
            if self._count > KEPT_KEYS_MAX // 2:
                self._words = np.zeros((self._blocks_max(), 8), dtype=np.uint32)
                bloom.insert_hashes(self._words, self._hashes.pop())

    def add_file(self, false_bytes: float) -> None:
        """Takes what is read of one more file when this filter says yes for nothing (`FineFilters.finish`)."""
        self._false_bytes += false_bytes

    def finish(self, hash_name: str) -> SplitBlockFilter:
        if self._words is None:
            hashes = np.concatenate([np.empty(0, dtype=np.uint64), *self._hashes])
            if len(hashes) <= _SORTED_KEYS_MAX:
                hashes = bloom.distinct(hashes)
            words, keys = _filled(hashes, self._sizing.task_blocks(len(hashes), self._false_bytes))
        else:
            words, keys = self._words, bloom.estimated_keys(self._words)
        words = bloom.fold_words(words, min(len(words), self._sizing.task_blocks(keys, self._false_bytes)))
        return bloom.SplitBlockFilter(np.ascontiguousarray(words), hash_name)

    def _blocks_max(self) -> int:
        if self._keys_max is None:
            return TASK_BLOCKS_MAX
        return min(TASK_BLOCKS_MAX, _rung(self._keys_max * _KEY_BITS_MAX))


def _filled(hashes: np.ndarray, blocks: int) -> tuple[np.ndarray, int]:
    """(a filter of hashes, uint64, of that many blocks or more, to be folded; how many are distinct)."""
    is_few = len(hashes) <= _SORTED_KEYS_MAX
    words = np.zeros((blocks if is_few else max(blocks, _rung(len(hashes) * _COUNTING_BITS)), 8), dtype=np.uint32)
    bloom.insert_hashes(words, hashes)
    return words, len(hashes) if is_few else min(len(hashes), bloom.estimated_keys(words))


def _rung(bits: int) -> int:
    """The blocks of the smallest filter that has so many bits."""
    return 1 << max(0, (bits - 1) // (8 * _BLOCK_BYTES)).bit_length()
