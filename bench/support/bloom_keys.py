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
from skipstone.bloom import SplitBlockFilter, hash_array, kernels, solve_blocks

from bench.support.data import random_uuids

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
        self.probe_count = min(count, PROBES_MAX)
        self.filters: dict[str, Any] = {}
        random = np.random.default_rng(count)
        self.members = _drawn(kind, count, random)
        half = self.probe_count // 2
        self.probes = pa.chunked_array(
            [*self.members[:half].chunks, *_drawn(kind, self.probe_count - half, random).chunks]
        )

    @cached_property
    def member_list(self) -> list:
        return _listed(self.members)

    @cached_property
    def probe_list(self) -> list:
        return _listed(self.probes)

    @cached_property
    def hashes(self) -> np.ndarray:
        return hash_array(self.members).hashes

    @cached_property
    def probe_hashes(self) -> np.ndarray:
        return hash_array(self.probes).hashes

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

    def member_hits(self, answers: list | pa.BooleanArray | np.ndarray) -> int:
        """How many of the members that were asked for are held: all of them, or the contender is wrong."""
        half = self.probe_count // 2
        if isinstance(answers, pa.BooleanArray):
            return answers[:half].true_count
        return answers[:half].count(True) if isinstance(answers, list) else int(np.count_nonzero(answers[:half]))


def _drawn(kind: str, count: int, random: np.random.Generator) -> pa.ChunkedArray:
    chunks = []
    for start in range(0, count, _AT_ONCE):
        batch_count = min(_AT_ONCE, count - start)
        if kind == INTS:
            chunks.append(pa.array(random.integers(-(2**63), 2**63, batch_count)))
        else:
            chunks.append(random_uuids(batch_count, random))
    return pa.chunked_array(chunks)


def _listed(values: pa.ChunkedArray) -> list:
    listed: list = []
    for chunk in values.chunks:
        listed += chunk.to_numpy().tolist() if pa.types.is_integer(chunk.type) else chunk.to_pylist()
    return listed


_current: list[Keys] = []


def keys(kind: str, count: int) -> Keys:
    """The keys of the row that is being measured. Those of the row before go first: there is no room for both."""
    if not _current or (_current[0].kind, _current[0].count) != (kind, count):
        forget()
        _current.append(Keys(kind, count))
    return _current[0]


def forget() -> None:
    """Lets the keys go."""
    _current.clear()
    gc.collect()


# -- contenders -------------------------------------------------------------------------------------------------------


def _ours(keyset: Keys) -> None:
    keyset.filters["skipstone"] = SplitBlockFilter.build(keyset.members, FPP, ndv=keyset.count)


def _rbloom(keyset: Keys) -> None:
    built = rbloom.Bloom(keyset.count, FPP)
    built.update(keyset.member_list)
    keyset.filters["rbloom"] = built


def fastbloom(kind: str, members: list, fpp: float) -> Any:
    """fastbloom-rs's filter of these members."""
    built = fastbloom_rs.FilterBuilder(len(members), fpp).build_bloom_filter()
    (built.add_int_batch if kind == INTS else built.add_str_batch)(members)
    return built


def _fastbloom(keyset: Keys) -> None:
    keyset.filters["fastbloom-rs"] = fastbloom(keyset.kind, keyset.member_list, FPP)


def _fuse(keyset: Keys) -> None:
    keyset.filters["pyfusefilter"] = fuse.Fuse8(keyset.member_list)


BUILD: dict[str, Callable[[Keys], None]] = {
    "skipstone": _ours,
    "rbloom": _rbloom,
    "fastbloom-rs": _fastbloom,
    "pyfusefilter": _fuse,
}
PROBE: dict[str, Callable[[Any, Keys], Any]] = {
    "skipstone": lambda built, keyset: built.contains(keyset.probes),
    "rbloom": lambda built, keyset: list(map(built.__contains__, keyset.probe_list)),
    "fastbloom-rs": lambda built, keyset: (
        built.contains_int_batch if keyset.kind == INTS else built.contains_str_batch
    )(keyset.probe_list),
    "pyfusefilter": lambda built, keyset: list(map(built.contains, keyset.probe_list)),
}


# pyfusefilter 1.3 gives xxhash a text, which newer ones refuse: what it means to hash are its bytes.
fuse.hash = lambda item: xxhash.xxh64_intdigest(str(item).encode())


def build_hashed(keyset: Keys) -> None:
    """Ours, from hashes that are there."""
    blocks = solve_blocks(keyset.count, FPP)
    keyset.filters["hashed"] = SplitBlockFilter.build_from_hashes(keyset.hashes, blocks, "int")


def fuse_from_hashes(hashes: np.ndarray) -> None:
    """pyfusefilter's own C function over hashes in place: what its Python face, a list, cannot be given."""
    built = ffi.gc(ffi.new("binary_fuse8_t *"), lib.binary_fuse8_free)
    if not lib.binary_fuse8_allocate(len(hashes), built):
        raise MemoryError("pyfusefilter has no room for its filter")
    if not lib.binary_fuse8_populate(ffi.cast("uint64_t *", ffi.from_buffer(hashes)), len(hashes), built):
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
        word = kernels._block_of(hashes[i], blocks) * 8
        seen ^= words[word] ^ words[word + 7]
    return seen
