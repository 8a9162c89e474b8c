"""The writer of a merge: entries that are in order already, and blocks as they lie in a run.

Blocks that are copied are checked against their checksums and moved, many at once, and none is decoded: heads and
directories are read as one table. Whatever is wrong is left to `Block` to name.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from . import codec
from .block import HEAD, SECTION, SECTION_BYTES_MAX
from .entries import Entries
from .index_rows import BlockInfo
from .merge_cursor import Stored, out_of_order
from .summaries import BlockSummary, summarise
from .writer import SortedFileWriter

# Blocks that are decoded and not copied, together: a few stored bytes may be a thousand times as many.
_DECODED_BYTES = 2 << 20
# Columns of the table of heads, as 32-bit words.
_CODECS, _SIZES, _RAWS, _CHECKSUMS = (slice(k, None, 4) for k in (4, 5, 6, 7))


class MergingWriter(SortedFileWriter):
    """A writer that takes whole blocks too. What it encodes itself before a block that is copied is cut evenly, so that
    a block that is merged with newer entries stays one, and leaves no small blocks before the next."""

    def add(self, entries: Entries, *, is_followed: bool) -> None:
        """Adds entries of the schema, ascending, above all that were added before; `is_followed`: next comes a block
        that is copied, or nothing."""
        sizes = entries.row_bytes()
        total = self._pending_bytes + int(sizes.sum())
        blocks = max(1, round(total / self._block_bytes)) if is_followed else 1
        self._full_bytes = -(-total // blocks) if is_followed else self._block_bytes
        self._add_cut(entries, sizes)
        self._last_key = entries.keys[len(entries) - 1].as_py()

    def may_copy(self, info: BlockInfo) -> bool:
        """Whether a block is as this writer would have it: of about its size, within one prefix."""
        cut = self._cut_prefix_bytes
        if not self._block_bytes <= 2 * info.plain_bytes <= 4 * self._block_bytes:
            return False
        return not cut or info.first_key[:cut] == info.last_key[:cut]

    def copy(self, stored: Stored) -> None:
        """Adds blocks as they lie, but decodes those that are compressed where this file is not, and those before which
        entries wait that are too few to be a block. Raises CorruptionError where a checksum does not match."""
        table = StoredBlocks(stored.data, stored.infos, len(self.schema))
        _check(stored, table)
        apart = table.compressed if self._compressor is None else np.zeros(len(stored.infos), dtype=bool)
        at, count = 0, len(stored.infos)
        while at < count:
            if apart[at] or self._wait_for_more(stored.infos[at].first_key):
                high, size = at + 1, stored.infos[at].plain_bytes
                while high < count and apart[high] and size < _DECODED_BYTES:
                    size += stored.infos[high].plain_bytes
                    high += 1
                self.add(stored.part(at, high).entries(), is_followed=True)
            else:
                rest = apart[at:]
                high = at + int(rest.argmax()) if rest.any() else count
                self._copy(stored.part(at, high), table, at)
            at = high

    def _wait_for_more(self, key: bytes) -> bool:
        """Whether what waits to be a block is little, and may share one with `key`."""
        return bool(self._pending) and 2 * self._pending_bytes < self._block_bytes and not self._has_new_prefix(key)

    def _copy(self, stored: Stored, table: StoredBlocks, low: int) -> None:
        self._flush()
        shift = self._offset - stored.infos[0].offset
        moved = table.moved(low, low + len(stored.infos), self._offset)
        infos = [BlockInfo(info.offset + shift, *info[1:]) for info in stored.infos]
        self._put_blocks(moved, infos, self._summaries_of(stored))
        self._last_key = stored.infos[-1].last_key

    def _summaries_of(self, stored: Stored) -> dict[str, list[BlockSummary]]:
        """The summaries of some blocks: those of their run, where it has them."""
        names = self._index.summarised
        kept = stored.cursor.file.index.summaries(names, stored.first, stored.first + len(stored.infos))
        summaries = {name: each.rows() for name, each in kept.items() if each is not None}
        missing = [name for name in names if name not in summaries]
        if missing:
            positions = [self.schema.get_field_index(name) for name in missing]
            rows = [
                [summarise(block.column(i).to_arrow(), block.deleted()) for i in positions] for block in stored.blocks()
            ]
            summaries.update(zip(missing, map(list, zip(*rows, strict=True)), strict=True))
        return summaries


def _check(stored: Stored, table: StoredBlocks) -> None:
    """Raises CorruptionError where blocks are damaged, or do not hold the tombstones that the index names."""
    if not table.are_sound:
        for block in stored.blocks():
            block.check()
        raise out_of_order("blocks are not those that the index names", stored.cursor.file, stored.infos[0])
    named = np.array([info.deleted for info in stored.infos])
    for i in np.flatnonzero(table.may_hold_tombstones | (named > 0)).tolist():
        deleted = next(stored.part(i, i + 1).blocks()).deleted()
        if named[i] != (0 if deleted is None else int(deleted.sum())):
            message = "a block does not hold the tombstones that the index names"
            raise out_of_order(message, stored.cursor.file, stored.infos[i])


class StoredBlocks:
    """Blocks that follow one another in some bytes of a file.

    are_sound             False where a length or a checksum of any of them does not fit; what follows is set where True
    compressed            bool [n]: whether any section is
    may_hold_tombstones   bool [n]
    """

    def __init__(self, data: memoryview, infos: Sequence[BlockInfo], columns: int):
        """`data` begins with the first block that the index names and ends with the last; each has `columns` value
        columns."""
        self._data, self._sections = data, 2 + columns
        self._offsets = np.array([info.offset for info in infos], dtype=np.int64)
        self._lengths = np.array([info.length for info in infos], dtype=np.int64)
        self._starts = self._offsets - self._offsets[0]
        self._head_bytes = HEAD.size + SECTION.size * self._sections
        fit = bool((self._lengths >= self._head_bytes).all()) and int(self._starts[-1] + self._lengths[-1]) == len(data)
        self.are_sound = fit and self._read(np.array([info.entries for info in infos]))

    def _read(self, entries: np.ndarray) -> bool:
        """Reads heads and directories, and checks them: whether all is sound."""
        whole = np.frombuffer(self._data, dtype=np.uint8)
        self._head_at = self._starts[:, None] + np.arange(self._head_bytes)
        self._heads = np.ascontiguousarray(whole[self._head_at]).view("<u4")
        heads = self._heads
        counts = heads[:, 3] & 0xFFFF
        if (heads[:, 1] != self._lengths).any() or (heads[:, 2] != entries).any() or (counts != self._sections).any():
            return False
        padded = (heads[:, _SIZES].astype(np.int64) + 7) & ~np.int64(7)
        ends = self._head_bytes + np.cumsum(padded, axis=1)
        self._section_at = ends - padded
        codecs = heads[:, _CODECS] & 0xFF
        if (ends[:, -1] != self._lengths).any() or (heads[:, _RAWS] > SECTION_BYTES_MAX).any():
            return False
        self.compressed = (codecs != codec.CODEC_RAW).any(axis=1)
        self.may_hold_tombstones = heads[:, 6] > 0
        starts = self._starts[:, None] + self._section_at
        body = self._crcs(starts.reshape(-1), (starts + padded).reshape(-1)).reshape(starts.shape)
        if (heads[:, _CHECKSUMS] != body ^ self._places(self._offsets, 0)).any():
            return False
        own = self._crcs(self._starts + 4, self._starts + self._head_bytes)
        return bool((heads[:, 0] == own ^ codec.place_crcs(self._offsets)).all())

    def moved(self, low: int, high: int, offset: int) -> memoryview:
        """The bytes of the blocks from `low` on, before `high`, for another place: their checksums are bound to it."""
        start, end = int(self._starts[low]), int(self._starts[high - 1] + self._lengths[high - 1])
        moved = np.array(np.frombuffer(self._data[start:end], dtype=np.uint8))
        places = self._offsets[low:high]
        others = places + (offset - int(places[0]))
        heads = self._heads[low:high].copy()
        heads[:, _CHECKSUMS] ^= self._places(places, low) ^ self._places(others, low)
        flat = heads.view(np.uint8).reshape(-1).data
        size = self._head_bytes
        own = [zlib.crc32(flat[at + 4 : at + size]) for at in range(0, len(flat), size)]
        heads[:, 0] = np.array(own, dtype=np.uint32) ^ codec.place_crcs(others)
        moved[self._head_at[low:high] - start] = heads.view(np.uint8)
        return moved.data

    def _crcs(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        crc32, data = zlib.crc32, self._data
        crcs = [crc32(data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.array(crcs, dtype=np.uint32)

    def _places(self, offsets: np.ndarray, low: int) -> np.ndarray:
        """uint32 [k, sections]: what binds the checksums of sections to their places, for k blocks from `low` on that
        lie at `offsets`."""
        at = offsets[:, None] + self._section_at[low : low + len(offsets)]
        return codec.place_crcs(at.reshape(-1)).reshape(at.shape)
