"""Curves through a grid: the order in which rows are laid down, so that those alike in several columns lie together.

A cell of a grid of k dimensions, each of 2**bits levels, has one place along a curve: a whole number of k * bits bits.

    morton     (z-order) the levels' bits dealt out in turn. Cheap; its neighbours may be far apart in the grid
    hilbert    every step along it leads to a neighbour in the grid, so a stretch of it is a more compact region, and
               its range in each column narrower. Found by Skilling's transform ("Programming the Hilbert curve", 2004)

Both visit every cell once. Of one dimension they are the level itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

BITS_MAX = 64


def morton(levels: Sequence[np.ndarray], bits: int) -> np.ndarray:
    """uint64 [n]: the place of each cell along the z-order curve.

    Args:
        levels: a dimension each, the most significant first: uint64 [n], below 2**bits. At most 64 bits in all.
    """
    found = np.zeros_like(levels[0])
    one = np.uint64(1)
    for bit in reversed(range(bits)):
        for level in levels:
            found <<= one
            found |= (level >> np.uint64(bit)) & one
    return found


def hilbert(levels: Sequence[np.ndarray], bits: int) -> np.ndarray:
    """uint64 [n]: the place of each cell along the Hilbert curve. Arguments as for `morton`."""
    axes = [level.copy() for level in levels]
    first, last = axes[0], axes[-1]
    for bit in reversed(range(1, bits)):
        low = np.uint64((1 << bit) - 1)
        for axis in axes:  # where the bit is set the first axis is turned round below it, elsewhere they change places
            is_set = (axis >> np.uint64(bit)) & np.uint64(1) != 0
            swapped = np.where(is_set, np.uint64(0), (first ^ axis) & low)
            first ^= np.where(is_set, low, swapped)
            if axis is not first:
                axis ^= swapped
    for before, axis in pairwise(axes):
        axis ^= before
    turned = np.zeros_like(first)
    for bit in reversed(range(1, bits)):
        is_set = (last >> np.uint64(bit)) & np.uint64(1)
        turned ^= is_set * np.uint64((1 << bit) - 1)
    for axis in axes:
        axis ^= turned
    return morton(axes, bits)


CURVES: dict[str, Callable[[Sequence[np.ndarray], int], np.ndarray]] = {"zorder": morton, "hilbert": hilbert}
