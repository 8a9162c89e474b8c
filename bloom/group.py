"""Many filters side by side, stored transposed: `[bucket][member][32 bytes]`.

A value touches one bucket of a filter, so in a transposed group it touches one row of 32 bytes times the members: one
range read serves every member, with nothing in memory. All members of such a matrix have one size. Members of very
different sizes would waste space, so a group is one or more *parts*, each a separate matrix (`sizing.plan_sizes`).

Probe a group in memory with `FilterGroup.contains`. If only the rows of a few buckets were read, use `bucket_of` and
`probe_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..base.arrays import read_only
from ..errors import InvalidArgumentError
from . import numpy_filter
from .filter import (
    SplitBlockFilter,
    hash_for_build,
    insert_hashes,
    replicate_words,
)
from .hashing import checked_hashes, checked_name, distinct
from .probes import probes_for
from .sizing import checked_fpp, plan_repeats, plan_sizes, solve_blocks

_GATHERED_BYTES_MAX = 4 << 20


@dataclass(frozen=True, eq=False)
class GroupPart:
    """One transposed matrix.

    members  the members' positions in the whole group, ascending
    words    uint32 [blocks, members, 8], contiguous and read-only
    """

    members: list[int]
    words: np.ndarray

    @property
    def blocks(self) -> int:
        """The number of buckets, each a row of 32 bytes times the members."""
        return self.words.shape[0]

    @property
    def rows(self) -> np.ndarray:
        """uint8 [blocks, members * 32]: row b is the stored row of bucket b. A read-only view."""
        return self.words.reshape(self.blocks, -1).view(np.uint8)

    def contains_hashes(self, hashes: np.ndarray) -> np.ndarray:
        """Return bool [n, members of this part] for hashes, uint64 [n]."""
        hashes = checked_hashes(hashes)
        out = np.empty((len(hashes), len(self.members)), dtype=bool)
        step = max(1, _GATHERED_BYTES_MAX // (numpy_filter.BLOCK_SIZE_BYTES * len(self.members)))
        for start in range(0, len(hashes), step):
            piece = hashes[start : start + step]
            out[start : start + step] = numpy_filter.may_contain(
                self.words[numpy_filter.bucket_of(piece, self.blocks)], piece
            )
        return out


class FilterGroup:
    """The filters of several members (row groups of a task, tasks of a segment), transposed. Immutable.

    Attributes:
        hash: what was hashed, as in `SplitBlockFilter`.
        parts: one `GroupPart` per size.
    """

    __slots__ = ("hash", "parts")

    def __init__(self, parts: Sequence[GroupPart], hash: str):
        """`parts`: together they contain each member once; not copied."""
        self.parts = tuple(parts)
        self.hash = checked_name(hash)

    @classmethod
    def build(
        cls, arrays: Sequence[pa.Array | pa.ChunkedArray], fpp: float = 0.01, hash: str = "canonical"
    ) -> FilterGroup:
        """Build one filter per array, sized for its distinct values that are not null.

        Raises:
            InvalidArgumentError: no arrays, arrays of different kinds, or a type or an argument that has no meaning
            here.
        """
        fpp = checked_fpp(fpp)
        if not isinstance(arrays, Sequence):
            raise InvalidArgumentError(f"a group is built from a list of arrays, one a member, not {arrays!r}")
        hashed = [hash_for_build(array, hash) for array in arrays]
        names = {each.name for each in hashed}
        if len(names) != 1:
            raise InvalidArgumentError(
                f"the members of a group must be of one kind: got {sorted(names) or 'no arrays'}"
            )
        hashes = [distinct(each.present()) for each in hashed]
        parts = []
        for blocks, members in plan_sizes([solve_blocks(len(each), fpp) for each in hashes]):
            words = np.empty((blocks, len(members), numpy_filter.WORDS_PER_BLOCK), dtype=np.uint32)
            for place, member in enumerate(members):
                built = np.zeros((blocks, numpy_filter.WORDS_PER_BLOCK), dtype=np.uint32)
                insert_hashes(built, hashes[member])
                words[:, place] = built
            parts.append(GroupPart(members, read_only(words)))
        return cls(parts, names.pop())

    @classmethod
    def from_filters(cls, filters: Sequence[SplitBlockFilter]) -> FilterGroup:
        """Group existing filters. If one is smaller than its group, its blocks are repeated.

        Raises:
            InvalidArgumentError: no filters, or different hashes.
        """
        names = {each.hash for each in filters}
        if len(names) != 1:
            raise InvalidArgumentError(
                f"the members of a group must be of one hash: got {sorted(names) or 'no filters'}"
            )
        parts = []
        for blocks, members in plan_repeats([each.blocks for each in filters]):
            words = np.empty((blocks, len(members), numpy_filter.WORDS_PER_BLOCK), dtype=np.uint32)
            for place, member in enumerate(members):
                words[:, place] = replicate_words(filters[member].words, blocks)
            parts.append(GroupPart(members, read_only(words)))
        return cls(parts, names.pop())

    @property
    def members(self) -> int:
        """The number of filters."""
        return sum(len(part.members) for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """The size of all rows in bytes."""
        return sum(part.words.nbytes for part in self.parts)

    def contains(self, values: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Return bool [value, member]: True if the member may contain the value, False if it does not. The row of a
        null is all True.

        Raises:
            InvalidArgumentError: values of a kind that the members do not contain.
        """
        probes = probes_for(values, self.hash)
        hits = self.contains_hashes(probes.hashes)
        if probes.other_hashes is not None:
            hits |= self.contains_hashes(probes.other_hashes)
        hits = probes.fill_known(hits)
        if probes.valid is not None:
            hits[~probes.valid] = True
        return hits

    def contains_hashes(self, hashes: np.ndarray) -> np.ndarray:
        """Return bool [n, members]: as `contains`, for hashes, uint64 [n], of this group's name."""
        if len(self.parts) == 1:
            return self.parts[0].contains_hashes(hashes)
        hits = np.empty((len(checked_hashes(hashes)), self.members), dtype=bool)
        for part in self.parts:
            hits[:, part.members] = part.contains_hashes(hashes)
        return hits

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(part.members)} of {part.blocks} blocks" for part in self.parts)
        return f"FilterGroup(hash={self.hash!r}, {sizes})"
