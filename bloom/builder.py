"""A split-block filter of values that come a few at a time, as from a writer of sorted blocks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError
from .hashing import distinct, hash_array
from .lazy import load_kernels_for
from .sizing import checked_count, checked_fpp, solve_exact_blocks
from .split_block import SplitBlockFilter, insert_hashes

# Kernels are loaded where the many small calls pay for them together: no one of them would.
_COUNTED_TOGETHER = 1 << 16
_PLAIN_NS = 500


class SplitBlockBuilder:
    """Takes values of one type, in any order and number, and gives a filter of them.

    fpp   the false-positive probability asked for, above 0 and below 1
    ndv   how many distinct values to size for. None counts them: 8 bytes a value are then held until the end, else no
          more than the filter

    Raises InvalidArgumentError for an argument that has no meaning.
    """

    def __init__(self, fpp: float = 0.01, ndv: int | None = None):
        self._fpp = checked_fpp(fpp)
        blocks = None if ndv is None else solve_exact_blocks(checked_count("ndv", ndv), self._fpp)
        self._words = None if blocks is None else np.zeros((blocks, 8), dtype=np.uint32)
        self._name: str | None = None
        self._hashes: list[np.ndarray] = []
        self._uncounted = 0

    def add(self, values: pa.Array | pa.ChunkedArray) -> None:
        """Takes values; nulls are left out. Raises InvalidArgumentError where they are not hashed as the others are."""
        self._uncounted += len(values)
        if self._uncounted >= _COUNTED_TOGETHER:
            load_kernels_for(_PLAIN_NS * self._uncounted)
            self._uncounted = 0
        hashed = hash_array(values)
        if self._name not in (None, hashed.name):
            raise InvalidArgumentError(f"a filter of {self._name!r} holds no values of {hashed.name!r}")
        self._name = hashed.name
        if self._words is None:
            self._hashes.append(hashed.present())
        else:
            insert_hashes(self._words, hashed.present())

    def finish(self) -> SplitBlockFilter:
        """The filter of all that was added."""
        name = hash_array(pa.array([], pa.binary())).name if self._name is None else self._name
        if self._words is not None:
            return SplitBlockFilter(self._words, name)
        hashes = distinct(np.concatenate([np.zeros(0, dtype=np.uint64), *self._hashes]))
        return SplitBlockFilter.build_from_hashes(hashes, solve_exact_blocks(len(hashes), self._fpp), name)

    def to_bytes(self) -> bytes:
        """`finish`, as bytes."""
        return self.finish().to_bytes()
