"""A run as a merge walks it: its blocks in key order, each read once, front to back, and copied or taken apart.

Blocks are read some together, a window. What was taken of a run waits, as blocks that are not decoded yet, until a
batch is merged; a block is decoded early where a part of it is taken, since then the next key must be known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..arrays import from_numpy, offsets_and_data, offsets_of
from ..errors import CorruptionError, InvalidArgumentError
from .block import Block
from .codec import Where
from .entries import Entries, check_ascending
from .index_rows import BlockInfo
from .open_file import OpenFile
from .scanning import block_entries, joined_entries, runs_of

_WINDOW_BLOCKS_MAX = 1024
# How much is taken at once goes by what the index says of blocks: where they come to so many times that, and so many
# bytes more, they are damaged.
_DECODED_TIMES, _DECODED_MORE_BYTES = 8, 1 << 20


class Stored(NamedTuple):
    """Blocks that follow one another, as they lie in the file of a run: `data` begins with the first of them and ends
    with the last; the run's number of the first is `first`."""

    cursor: Cursor
    data: memoryview
    infos: list[BlockInfo]
    first: int

    def part(self, low: int, high: int) -> Stored:
        """The blocks from `low` on, before `high`."""
        begin = self.infos[0].offset
        start, end = self.infos[low].offset - begin, self.infos[high - 1].offset + self.infos[high - 1].length - begin
        return Stored(self.cursor, self.data[start:end], self.infos[low:high], self.first + low)

    def blocks(self) -> Iterator[Block]:
        """Each of them, its head checked. Raises CorruptionError."""
        begin = self.infos[0].offset
        for i, info in enumerate(self.infos):
            start = info.offset - begin
            view = self.data[start : start + info.length]
            yield self.cursor.file.parsed(self.first + i, view, info.offset, info.entries)

    def entries(self) -> Entries:
        """All of them, decoded. Raises CorruptionError."""
        columns = range(len(self.cursor.file.schema))
        parts: list[Entries] = []
        size, most = 0, _DECODED_TIMES * sum(info.plain_bytes for info in self.infos) + _DECODED_MORE_BYTES
        for run in runs_of(self.blocks()):
            joined = joined_entries(run, columns) if len(run) > 1 else None
            for part in [joined] if joined is not None else (block_entries(block, columns) for block in run):
                parts.append(part)
                size += part.size_bytes
                if size > most:
                    where = Where(self.cursor.file.name, self.infos[0].offset)
                    raise where.bad("decoded size", f"blocks come to {size:,} bytes, which is not what the index says")
        whole_run = Entries.concat(parts)
        self._check(whole_run.keys)
        return whole_run

    def _check(self, keys: pa.BinaryArray) -> None:
        """Raises CorruptionError where the keys are not in order, or blocks do not begin and end as the index says."""
        starts = offsets_of(np.array([info.entries for info in self.infos]))
        ends = np.column_stack([starts[:-1], starts[1:] - 1]).reshape(-1)
        named = [key for info in self.infos for key in (info.first_key, info.last_key)]
        decoded = keys.take(from_numpy(ends)).to_pylist()
        if decoded != named:
            i = next(i for i, (a, b) in enumerate(zip(decoded, named, strict=True)) if a != b) // 2
            message = "a block does not begin and end with the keys that the index names"
            raise out_of_order(message, self.cursor.file, self.infos[i])
        try:
            check_ascending(keys, None)
        except InvalidArgumentError as error:
            raise out_of_order(str(error), self.cursor.file, self.infos[0]) from None


class Cursor:
    """A run, of which entries are taken front to back.

    file         of the run
    age          0 for the oldest run; a newer one wins
    live         whether there is more
    first_key    of what is left
    last_key     of what is left of the block at hand, or of a part of it
    """

    def __init__(
        self,
        file: OpenFile,
        age: int,
        start: bytes | None,
        stop: bytes | None,
        ahead_bytes: int,
        decoded_bytes: int,
    ):
        """`ahead_bytes`: so much of the file is read at once. `decoded_bytes`: a block that is larger is not kept
        decoded, and taken in parts of that size."""
        self.file, self.age = file, age
        self._ahead_bytes, self._decoded_bytes, self._stop = ahead_bytes, decoded_bytes, stop
        within = file.block_range(start or b"", stop)
        self._infos = file.index.blocks(within.start, within.stop)
        self._following = next(self._infos, None)
        self._window, self._block = Stored(self, memoryview(b""), [], within.start), -1
        self._waiting: list[Entries | tuple[Stored, int, int]] = []
        self.first_key = self.last_key = b""
        self._next()
        if self.live and start is not None and self.first_key < start:
            self._skip(start)

    # -- the block at hand --------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Goes on to the next block."""
        self._decoded: _Decoded | None = None
        self._block += 1
        self.live = self._block < len(self._window.infos) or self._read_on()
        if not self.live:
            return
        self._info = info = self._window.infos[self._block]
        # Rows taken, those of them that are in `_waiting`, the end of the part at hand, the end of the wanted rows.
        self._row = self._stored_rows = 0
        self._end = self._rows_end = info.entries
        self._is_large = info.plain_bytes > self._decoded_bytes
        self.first_key, self.last_key = info.first_key, info.last_key
        if self._stop is not None and self.last_key >= self._stop:
            self._end = self._rows_end = self._keys().bound(bisect_left, self._stop, 0)
            self.live = self._end > 0
            if self.live:
                self.last_key = self._keys().key_at(self._end - 1)

    def _read_on(self) -> bool:
        """Reads the next window; False where the run has ended."""
        if self._following is None:
            return False
        infos, size = [self._following], self._following.length
        self._following = None
        for info in self._infos:
            size += info.length
            is_next = info.offset == infos[-1].offset + infos[-1].length
            if size > self._ahead_bytes or not is_next or len(infos) == _WINDOW_BLOCKS_MAX:
                self._following = info
                break
            infos.append(info)
        before = self._window.infos[-1].last_key if self._window.infos else None
        for info in infos:
            if info.first_key > info.last_key or (before is not None and info.first_key <= before):
                raise out_of_order("the blocks of a run are not in key order", self.file, info)
            before = info.last_key
        first = self._window.first + len(self._window.infos)
        self._window, self._block = Stored(self, self.file.stored(infos[0], infos[-1]), infos, first), 0
        return True

    def _skip(self, start: bytes) -> None:
        """Leaves out what is below `start`."""
        self._row = self._stored_rows = self._keys().bound(bisect_left, start, 0)
        if self._row >= self._rows_end:
            self._next()
        else:
            self.first_key = self._keys().key_at(self._row)

    @property
    def _is_whole(self) -> bool:
        """Whether nothing was taken of the block at hand, and all of it is wanted."""
        return not self._row and self._end == self._info.entries

    def split(self, part_bytes: int) -> None:
        """Lowers `last_key` to the end of a part of about so many bytes of the block at hand, or of a large block less,
        so that not all of it must be taken at once."""
        part_bytes = min(part_bytes, self._decoded_bytes)
        rows = max(1, self._info.entries * part_bytes // max(1, self._info.plain_bytes))
        if self._row + rows < self._end:
            self._end = self._row + rows
            self.last_key = self._keys().key_at(self._end - 1)
            if self._is_large:
                self._decoded = None

    # -- taking -------------------------------------------------------------------------------------------------------

    def span(self, below: bytes | None, may_copy: Callable[[BlockInfo], bool]) -> Stored | None:
        """The blocks of the window from that at hand on whose keys are all below a key, and which may be copied; None
        where that at hand is not one. Goes on after them."""
        if not self._is_whole:
            return None
        window, low = self._window, self._block
        infos = window.infos
        # The last block of what is wanted may not be wanted whole.
        high = len(infos) - 1 if self._stop is not None and infos[-1].last_key >= self._stop else len(infos)
        if below is not None:
            high = bisect_left(infos, below, lo=low, hi=high, key=attrgetter("last_key"))
        those = infos[low:high]
        others = (i for i, info in enumerate(those) if not (may_copy(info) or _is_alone(those, i, may_copy)))
        high = low + next(others, len(those))
        if low == high:
            return None
        self._block, self.last_key = high - 1, infos[high - 1].last_key
        self._next()
        return window.part(low, high)

    def reach(self) -> bytes | None:
        """Up to which key at most to take at once: the last of the block after that at hand, or of a part of a large
        block; None where there is no other block."""
        if self._is_large:
            return self.last_key
        following = self._block + 1
        after = self._window.infos[following] if following < len(self._window.infos) else self._following
        return None if after is None else after.last_key

    def take_through(self, bound: bytes) -> int:
        """Takes all that is left up to `bound`: about so many bytes."""
        size = 0
        while self.live and self.last_key <= bound:
            size += self._take(self._end)
        if self.live and self.first_key <= bound:
            size += self._take(self._keys().bound(bisect_right, bound, self._row))
        return size

    def _take(self, end: int) -> int:
        """Takes what is left of the block at hand, before row `end`."""
        size = self._info.plain_bytes * (end - self._row) // self._info.entries
        self._row = end
        if end == self._rows_end:
            if self._decoded is None and not self._stored_rows and end == self._info.entries:
                self._take_whole()
            else:
                self._store()
            self._next()
            return size
        self.first_key = self._keys().key_at(end)
        if end == self._end:
            self._end = self._rows_end
            self.last_key = self._keys().key_at(self._end - 1)
        if self._is_large:
            self._store()
            self._decoded = None
        return size

    def _take_whole(self) -> None:
        """The block at hand goes to what is taken; blocks that follow one another are decoded together."""
        if self._waiting and not isinstance(last := self._waiting[-1], Entries):
            window, low, high = last
            if window is self._window and high == self._block:
                self._waiting[-1] = window, low, high + 1
                return
        self._waiting.append((self._window, self._block, self._block + 1))

    def _store(self) -> None:
        """What was taken of the block at hand goes to what is taken; of a large block it is copied, so that the block
        can go."""
        if self._stored_rows < self._row:
            part = self._keys().entries.slice(self._stored_rows, self._row - self._stored_rows)
            self._waiting.append(part.compact() if self._is_large else part)
            self._stored_rows = self._row

    def take_waiting(self) -> list[Entries | Stored]:
        """What was taken since this was last asked, in key order, decoded or not."""
        if self.live:
            self._store()
        parts, self._waiting = self._waiting, []
        return [part if isinstance(part, Entries) else part[0].part(*part[1:]) for part in parts]

    def _keys(self) -> _Decoded:
        if self._decoded is None:
            entries = self._window.part(self._block, self._block + 1).entries()
            self._decoded = _Decoded(entries)
            self._is_large |= entries.size_bytes > self._decoded_bytes
        return self._decoded


class _Decoded:
    """A block whose keys are searched."""

    def __init__(self, entries: Entries):
        self.entries = entries
        offsets, self._data = offsets_and_data(entries.keys)
        self._offsets = offsets.data

    def key_at(self, row: int) -> bytes:
        return bytes(self._data[self._offsets[row] : self._offsets[row + 1]])

    def bound(self, bisect: Callable[..., int], key: bytes, low: int) -> int:
        """The place of a key among those from `low` on."""
        return bisect(range(len(self.entries)), key, lo=low, key=self.key_at)


def out_of_order(message: str, file: OpenFile, info: BlockInfo) -> CorruptionError:
    """A CorruptionError for a block whose keys are not in order, or not those that the index names."""
    return CorruptionError(f"{message}; rebuild the run", path=file.name, offset=info.offset, check="key order")


def _is_alone(infos: list[BlockInfo], i: int, may_copy: Callable[[BlockInfo], bool]) -> bool:
    """Whether a block is only too small to be copied, as the last of a group may be, and those before and after it are
    copied: then it would be encoded alone, to what it is."""
    if not 0 < i < len(infos) - 1 or infos[i].plain_bytes >= infos[i - 1].plain_bytes:
        return False
    before, info, after = infos[i - 1 : i + 2]
    return may_copy(before) and may_copy(after) and may_copy(info._replace(plain_bytes=before.plain_bytes))
