"""Asking the coarse filters: which files may hold the values that a predicate looks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from ....arrays import positions
from ...predicates import Leaf
from ...state import IndexState, Run
from ...state.runs import RunReaders, reading_run
from ...storage.prefetch import side_by_side
from .coarse import Asks
from .format import FilterPlaces, FilterRun
from .hashed_values import probes_of


def ask(
    index: IndexState,
    asked: Mapping[Leaf, pa.Array],
    ids: np.ndarray,
    covered: np.ndarray,
    readers: RunReaders,
    damaged: Sequence[str],
) -> tuple[dict[Leaf, np.ndarray], FilterPlaces]:
    """(bool [1, file] for each leaf: False where none of the values that it asks for can be there; where the fine
    filters lie) of files by number, of which the index may speak of those covered. Raises DamagedRun."""
    may = {leaf: np.ones((1, len(ids)), dtype=bool) for leaf in asked}
    places = FilterPlaces.nowhere(ids)
    asks = [_asks(values) for values in asked.values()]
    readers.begin_question()

    def found_in(run: Run) -> tuple[FilterRun, np.ndarray, list[np.ndarray]]:
        with reading_run(run):
            opened = FilterRun(readers, run)
            here = np.flatnonzero(opened.coarse.holds(ids) & covered)
            return opened, here, opened.files_with(asks) if len(here) else []

    runs = [run for run in index.runs if run.path not in damaged]
    for opened, here, answer in side_by_side(readers.storage, found_in, runs, "skipstone-filters"):
        if len(here):
            for flags, with_it in zip(may.values(), answer, strict=True):
                flags[0, here] &= positions(with_it, ids[here]) >= 0
            places.add(opened, here)
    return may, places


def _asks(values: pa.Array) -> Asks:
    """The question whether one of some values may be there."""
    known: dict[str, np.ndarray | None] = {}

    def hashes_under(name: str) -> np.ndarray | None:
        if name not in known:
            probes = probes_of(values, name)
            known[name] = None if probes is None else probes.any_of()
        return known[name]

    return hashes_under
