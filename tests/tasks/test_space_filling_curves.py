"""Curves through a grid visit every cell once, and Hilbert's goes from neighbour to neighbour."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.engine.clustering import CURVES, hilbert, morton

GRIDS = [(1, 5), (2, 1), (2, 2), (2, 4), (3, 1), (3, 3), (4, 2), (5, 2), (8, 1)]


def grid(dimensions: int, bits: int) -> np.ndarray:
    return np.array(list(itertools.product(range(1 << bits), repeat=dimensions)), dtype=np.uint64)


def along(curve: str, cells: np.ndarray, bits: int) -> np.ndarray:
    return CURVES[curve]([np.ascontiguousarray(column) for column in cells.T], bits)


def plain_morton(cell: list[int], bits: int) -> int:
    found = 0
    for bit in reversed(range(bits)):
        for level in cell:
            found = found << 1 | (level >> bit & 1)
    return found


def plain_hilbert(cell: list[int], bits: int) -> int:
    """Skilling's AxesToTranspose, as published."""
    x, n, most = list(cell), len(cell), 1 << (bits - 1)
    q = most
    while q > 1:
        p = q - 1
        for i in range(n):
            if x[i] & q:
                x[0] ^= p
            else:
                t = (x[0] ^ x[i]) & p
                x[0] ^= t
                x[i] ^= t
        q >>= 1
    for i in range(1, n):
        x[i] ^= x[i - 1]
    t, q = 0, most
    while q > 1:
        if x[n - 1] & q:
            t ^= q - 1
        q >>= 1
    return plain_morton([level ^ t for level in x], bits)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(("dimensions", "bits"), GRIDS)
def test_every_cell_has_a_place_of_its_own(curve: str, dimensions: int, bits: int) -> None:
    places = along(curve, grid(dimensions, bits), bits)
    assert sorted(places.tolist()) == list(range(1 << dimensions * bits))


@pytest.mark.parametrize(("dimensions", "bits"), GRIDS)
def test_hilberts_steps_lead_to_neighbours(dimensions: int, bits: int) -> None:
    cells = grid(dimensions, bits)
    walked = cells[np.argsort(along("hilbert", cells, bits))].astype(np.int64)
    assert (np.abs(np.diff(walked, axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize("curve", CURVES)
def test_one_dimension_is_its_own_order(curve: str) -> None:
    levels = np.array([0, 7, 3, (1 << 64) - 1, 1 << 63], dtype=np.uint64)
    assert CURVES[curve]([levels], 64).tolist() == levels.tolist()


@given(st.data())
def test_as_their_plain_twins(data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, 64))
    bits = data.draw(st.integers(1, 64 // dimensions))
    cell = st.lists(st.integers(0, (1 << bits) - 1), min_size=dimensions, max_size=dimensions)
    cells = data.draw(st.lists(cell, min_size=1, max_size=5))
    levels = [np.array(column, dtype=np.uint64) for column in zip(*cells, strict=True)]
    given_levels = [column.copy() for column in levels]
    assert morton(levels, bits).tolist() == [plain_morton(cell, bits) for cell in cells]
    assert hilbert(levels, bits).tolist() == [plain_hilbert(cell, bits) for cell in cells]
    assert all((a == b).all() for a, b in zip(levels, given_levels, strict=True)), "arguments are left as they were"
