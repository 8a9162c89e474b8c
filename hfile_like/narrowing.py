"""Which entries of a block may be wanted: those of which some columns of int64 lie within bounds.

Compiled code goes through the sections as they are stored, once, and gives rows and values; without it, and for blocks
whose columns are encoded in another way, numpy compares what each column says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..lazy import is_loaded, kernels_for, read_only
from .block import Block
from .open_file import Stretch
from .values import integer_dtype

# About what an entry and column costs without compiled code.
_ENTRY_PLAIN_NS = 3
_KERNELS = "hfile_like.kernels_blocks"
_ROOM = 8  # entries are looked at by eights


class Picked(NamedTuple):
    """Some entries of a block.

    rows     int64 [k], ascending
    values   position of a column -> uint64 [k], for some of the columns; until the next block is narrowed
    """

    rows: np.ndarray
    values: Mapping[int, np.ndarray]


class Taken(NamedTuple):
    """Some entries of the first blocks of a stretch.

    blocks    how many blocks were gone through
    numbers   uint64 [k], of the keys
    values    position of a column -> uint64 [k]; until the next stretch is gone through
    """

    blocks: int
    numbers: np.ndarray
    values: Mapping[int, np.ndarray]


class Narrowing:
    """Bounds of columns, and room to work in: for one thread.

    bounds   position of a column -> the least and the greatest value that is wanted
    """

    def __init__(self, bounds: Mapping[int, tuple[int, int]]):
        self._bounds = bounds
        self._limits = np.array(
            [[min(max(end, -(1 << 63)), (1 << 63) - 1) for end in ends] for ends in bounds.values()], dtype=np.int64
        ).reshape(-1, 2)
        self._is_empty = any(low >= 1 << 63 or high < -(1 << 63) or low > high for low, high in bounds.values())
        self._outside = np.empty(0, dtype=np.uint8)
        self._rows = np.empty(0, dtype=np.int64)
        self._values = self._taken = np.empty((0, 0), dtype=np.uint64)

    @property
    def positions(self) -> list[int]:
        """Of the columns that have bounds."""
        return list(self._bounds)

    def pick(self, block: Block) -> Picked | None:
        """The entries within all bounds, and tombstones and nulls; None for all. Others may be left among them."""
        if not self._bounds:
            return None
        count = block.entries
        kernels = kernels_for(_KERNELS, _ENTRY_PLAIN_NS * count * len(self._bounds))
        places = None if kernels is None or self._is_empty else self._places(block, kernels.HAS_CRC32)
        if kernels is None or places is None:
            wanted = inside(block, self._bounds)
            return None if wanted is None else Picked(np.flatnonzero(wanted), {})
        self._make_room(count)
        if self._values.shape[1] < count:
            self._values = np.empty((len(self._bounds), count), dtype=np.uint64)
        stored = read_only(block.stored)
        picked = kernels.pick(stored, places, self._limits, count, self._outside, self._rows, self._values)
        if picked < 0:
            for position in self._bounds:
                block.check_column(position)
            raise block.where.bad("integers", "a section of a block does not hold as many integers as the block")
        if picked == count:
            return None
        values = {position: row[:picked] for position, row in zip(self._bounds, self._values, strict=True)}
        return Picked(self._rows[:picked], values)

    def taken(self, stretch: Stretch, is_narrowed: Sequence[bool], prefix: bytes, schema: pa.Schema) -> Taken:
        """What of the first blocks of a stretch compiled code can go through at once, as of blocks whose keys are
        `prefix` and a number: of `is_narrowed` ones the entries that `pick` gives, all of others."""
        count, kernels = sum(stretch.entries), None
        if is_loaded(_KERNELS) and self._is_plain(schema):  # until then `pick` counts what it takes
            kernels = kernels_for(_KERNELS, _ENTRY_PLAIN_NS * count * len(self._bounds))
        if kernels is None or not kernels.HAS_CRC32:
            return Taken(0, np.empty(0, dtype=np.uint64), {})
        blocks = np.empty((len(stretch.entries), 4), dtype=np.int64)
        blocks[:, 0], blocks[:, 1] = stretch.offsets, stretch.lengths
        blocks[:, 0] -= stretch.offset
        blocks[:, 2], blocks[:, 3] = stretch.entries, is_narrowed
        self._make_room(max(stretch.entries))
        if self._taken.shape[1] < count:
            self._taken = np.empty((1 + len(self._bounds), count), dtype=np.uint64)
        columns = np.array(list(self._bounds), dtype=np.int64)
        places = np.empty((1 + len(columns), 3), dtype=np.int64)
        raw, sections = read_only(stretch.view), 2 + len(schema)
        scratch = places, self._outside, self._rows, self._taken
        done, taken = kernels.pick_blocks(
            raw, stretch.offset, blocks, sections, read_only(prefix), columns, self._limits, *scratch
        )
        numbers, *values = self._taken[:, :taken]
        return Taken(done, numbers, dict(zip(self._bounds, values, strict=True)))

    def _is_plain(self, schema: pa.Schema) -> bool:
        kinds = [integer_dtype(schema.field(position).type) for position in self._bounds]
        return bool(kinds) and not self._is_empty and all(kind == np.dtype("<i8") for kind in kinds)

    def _make_room(self, count: int) -> None:
        if len(self._rows) < count + _ROOM:
            self._outside = np.empty(count + _ROOM, dtype=np.uint8)
            self._rows = np.empty(count + _ROOM, dtype=np.int64)

    def _places(self, block: Block, has_crc32: bool) -> np.ndarray | None:
        """int64 [columns, 3]: where each column begins and ends in a block, and its CRC-32, -1 where that was compared
        here; None where one is encoded in another way than the compiled code reads, or some entries are tombstones,
        which stay."""
        if block.deleted() is not None:
            return None
        places = np.empty((len(self._bounds), 3), dtype=np.int64)
        for place, position in zip(places, self._bounds, strict=True):
            ends = block.frame_place(position)
            if ends is None or integer_dtype(block.schema.field(position).type) != np.dtype("<i8"):
                return None
            place[:] = ends
            if not has_crc32:
                block.check_column(position)
                place[2] = -1
        return places


def inside(block: Block, bounds: Mapping[int, tuple[int, int]]) -> np.ndarray | None:
    """bool [entries]: False where some column's value lies outside of its bounds; None for all. Tombstones stay. The
    twin of the compiled `pick`."""
    is_outside: np.ndarray | None = None
    for position, (low, high) in bounds.items():
        outside = block.column(position).outside(low, high)
        if outside is not None:
            is_outside = outside if is_outside is None else is_outside | outside
    if is_outside is None or not is_outside.any():
        return None
    deleted = block.deleted()
    return ~is_outside if deleted is None else ~is_outside | deleted
