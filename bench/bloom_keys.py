"""Keys of bench/bloom.py and who holds them: the same members and the same questions in each contender's own form."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from functools import cached_property
from typing import Any

import fastbloom_rs
import numpy as np
import pyarrow as pa
import pyfusefilter.pyfusefilter as fuse
import rbloom
import xxhash
from numba import njit
from pyfusefilter._xorfilter import ffi, lib
from skipstone.bloom import SplitBlockFilter, hash_array, kernels, solve_exact_blocks

from bench.data import random_uuids

FPP = 0.01
CACHED = 1_000_000
INTS, TEXTS = "int64s", "uuid strings"
_AT_ONCE = 1_000_000


def _uncached(name: str, count: int) -> int:
    return int(os.environ.get(f"SKIPSTONE_BENCH_{name}", count))


COUNTS = {INTS: _uncached("INTS", 40_000_000), TEXTS: _uncached("STRINGS", 6_000_000)}
"""How many keys make a filter that no cache holds."""
PROBES_MAX = 10_000_000


class Keys:
    """`count` members of one kind and the questions asked: as many members as strangers, members first.

    Peers take Python objects: their lists are made beforehand, so that no conversion is in their time. Ours is: it
    begins at the Arrow array.
    """

    def __init__(self, kind: str, count: int):
        self.kind, self.count = kind, count
        self.asked_count = min(count, PROBES_MAX)
        self.filters: dict[str, Any] = {}
        random = np.random.default_rng(count)
        self.members = _drawn(kind, count, random)
        half = self.asked_count // 2
        self.asked = pa.chunked_array(
            [*self.members[:half].chunks, *_drawn(kind, self.asked_count - half, random).chunks]
        )

    @cached_property
    def member_list(self) -> list:
        return _listed(self.members)

    @cached_property
    def asked_list(self) -> list:
        return _listed(self.asked)

    @cached_property
    def hashes(self) -> np.ndarray:
        return hash_array(self.members).hashes

    @cached_property
    def asked_hashes(self) -> np.ndarray:
        return hash_array(self.asked).hashes

    def renewed(self, listed: str) -> Keys:
        """With one of the lists made anew: a str keeps its hash once it was asked for it, and hashing is timed."""
        if self.kind == TEXTS:
            self.__dict__.pop(listed, None)
            getattr(self, listed)
        return self

    def filter_of(self, name: str) -> Any:
        """A contender's filter over the members: the one that it built last."""
        if name not in self.filters:
            BUILD[name](self)
        return self.filters[name]

    def found(self, answers: list | pa.BooleanArray | np.ndarray) -> int:
        """How many of the members that were asked for are held: all of them, or the contender is wrong."""
        half = self.asked_count // 2
        if isinstance(answers, pa.BooleanArray):
            return answers[:half].true_count
        return answers[:half].count(True) if isinstance(answers, list) else int(np.count_nonzero(answers[:half]))


def _drawn(kind: str, count: int, random: np.random.Generator) -> pa.ChunkedArray:
    chunks = []
    for start in range(0, count, _AT_ONCE):
        some = min(_AT_ONCE, count - start)
        if kind == INTS:
            chunks.append(pa.array(random.integers(-(2**63), 2**63, some)))
        else:
            chunks.append(random_uuids(some, random))
    return pa.chunked_array(chunks)


def _listed(values: pa.ChunkedArray) -> list:
    listed: list = []
    for chunk in values.chunks:
        listed += chunk.to_numpy().tolist() if pa.types.is_integer(chunk.type) else chunk.to_pylist()
    return listed


_held: list[Keys] = []


def keys(kind: str, count: int) -> Keys:
    """The keys of the row that is being measured. Those of the row before go first: there is no room for both."""
    if not _held or (_held[0].kind, _held[0].count) != (kind, count):
        forget()
        _held.append(Keys(kind, count))
    return _held[0]


def forget() -> None:
    """Lets the keys go."""
    _held.clear()
    gc.collect()


# -- contenders -------------------------------------------------------------------------------------------------------


def _ours(held: Keys) -> None:
    held.filters["skipstone"] = SplitBlockFilter.build(held.members, FPP, ndv=held.count)


def _rbloom(held: Keys) -> None:
    made = rbloom.Bloom(held.count, FPP)
    made.update(held.member_list)
    held.filters["rbloom"] = made


def fastbloom(kind: str, members: list, fpp: float) -> Any:
    """fastbloom-rs's filter of these members."""
    made = fastbloom_rs.FilterBuilder(len(members), fpp).build_bloom_filter()
    (made.add_int_batch if kind == INTS else made.add_str_batch)(members)
    return made


def _fastbloom(held: Keys) -> None:
    held.filters["fastbloom-rs"] = fastbloom(held.kind, held.member_list, FPP)


def _fuse(held: Keys) -> None:
    held.filters["pyfusefilter"] = fuse.Fuse8(held.member_list)


BUILD: dict[str, Callable[[Keys], None]] = {
    "skipstone": _ours,
    "rbloom": _rbloom,
    "fastbloom-rs": _fastbloom,
    "pyfusefilter": _fuse,
}
PROBE: dict[str, Callable[[Any, Keys], Any]] = {
    "skipstone": lambda made, held: made.contains(held.asked),
    "rbloom": lambda made, held: list(map(made.__contains__, held.asked_list)),
    "fastbloom-rs": lambda made, held: (made.contains_int_batch if held.kind == INTS else made.contains_str_batch)(
        held.asked_list
    ),
    "pyfusefilter": lambda made, held: list(map(made.contains, held.asked_list)),
}


# pyfusefilter 1.3 gives xxhash a text, which newer ones refuse: what it means to hash are its bytes.
fuse.hash = lambda item: xxhash.xxh64_intdigest(str(item).encode())


def build_hashed(held: Keys) -> None:
    """Ours, from hashes that are there."""
    blocks = solve_exact_blocks(held.count, FPP)
    held.filters["hashed"] = SplitBlockFilter.build_from_hashes(held.hashes, blocks, "int")


def fuse_from_hashes(hashes: np.ndarray) -> None:
    """pyfusefilter's own C function over hashes in place: what its Python face, a list, cannot be given."""
    made = ffi.gc(ffi.new("binary_fuse8_t *"), lib.binary_fuse8_free)
    if not lib.binary_fuse8_allocate(len(hashes), made):
        raise MemoryError("pyfusefilter has no room for its filter")
    if not lib.binary_fuse8_populate(ffi.cast("uint64_t *", ffi.from_buffer(hashes)), len(hashes), made):
        raise ValueError("pyfusefilter could not build its filter")


# -- the floor --------------------------------------------------------------------------------------------------------


@njit(nogil=True)
def gather(words, hashes):
    """Touches each hash's block, both ends, asked for well ahead, and does nothing with it."""
    blocks = np.uint64(len(words) // 8)
    count = len(hashes)
    seen = np.uint32(0)
    for i in range(count):
        if i + 128 < count:
            kernels._prefetch_block(words, hashes[i + 128], blocks)
        at = kernels._block_of(hashes[i], blocks) * 8
        seen ^= words[at] ^ words[at + 7]
    return seen
