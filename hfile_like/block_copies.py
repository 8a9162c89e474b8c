"""Blocks as they lie in a file, many at once: checked against their checksums and moved, and none decoded.

What is asked of one block at a time is `Block`'s; here heads and directories are read as one table, and a call is paid
for each checksum and not for each number. Whatever is wrong is left to `Block` to name.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from . import codec
from .block import HEAD, SECTION, SECTION_BYTES_MAX
from .index_rows import BlockInfo

_CODECS, _SIZES, _RAWS, _CHECKSUMS = (slice(k, None, 4) for k in (4, 5, 6, 7))


class StoredBlocks:
    """Blocks that follow one another in some bytes of a file.

    are_sound             False where a length or a checksum of any of them does not fit; what follows is set where True
    compressed            bool [n]: whether any section is
    need_dictionary       bool [n]: whether any section was compressed with the dictionary of the file
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
        self.need_dictionary = (codecs == codec.CODEC_ZSTD_DICTIONARY).any(axis=1)
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
        found = [crc32(data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.array(found, dtype=np.uint32)

    def _places(self, offsets: np.ndarray, low: int) -> np.ndarray:
        """uint32 [k, sections]: what binds the checksums of sections to their places, for k blocks from `low` on that
        lie at `offsets`."""
        at = offsets[:, None] + self._section_at[low : low + len(offsets)]
        return codec.place_crcs(at.reshape(-1)).reshape(at.shape)
