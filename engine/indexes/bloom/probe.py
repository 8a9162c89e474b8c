"""Probing the coarse filters: which files may hold the values that a predicate looks for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from ....arrays import positions
from ...predicates import Leaf
from ...state import IndexState, Run
from ...state.runs import reading_run
from ...storage.prefetch import side_by_side
from ..protocol import ProbedFiles
from .coarse import Asks
from .format import FilterPlaces, FilterRun
from .hashed_values import probes_of


def probe_filters(
    index: IndexState, sought: Mapping[Leaf, pa.Array], files: ProbedFiles
) -> tuple[dict[Leaf, np.ndarray], FilterPlaces]:
    """(bool [1, file] for each leaf: False where none of the values that are sought for it can be there; the places of
    the fine filters). Raises DamagedRun."""
    ids, covered, readers = files.ids, files.covered_by(index), files.snapshot.readers
    may = {leaf: np.ones((1, len(ids)), dtype=bool) for leaf in sought}
    places = FilterPlaces.nowhere(ids)
    asks = [_hashes_of(values) for values in sought.values()]
    readers.begin_question()

    def found_in(run: Run) -> tuple[FilterRun, np.ndarray, list[np.ndarray]]:
        with reading_run(run):
            opened = FilterRun(readers, run)
            here = np.flatnonzero(opened.coarse.holds(ids) & covered)
            return opened, here, opened.files_with(asks) if len(here) else []

    runs = [run for run in index.runs if run.path not in files.damaged]
    for opened, here, files_with in side_by_side(readers.storage, found_in, runs, "skipstone-filters"):
        if len(here):
            for flags, with_it in zip(may.values(), files_with, strict=True):
                flags[0, here] &= positions(with_it, ids[here]) >= 0
            places.add(opened, here)
    return may, places


def _hashes_of(values: pa.Array) -> Asks:
    """The hashes of some values under each hash that a filter may have, worked out once."""
    known: dict[str, np.ndarray | None] = {}

    def hashes_under(name: str) -> np.ndarray | None:
        if name not in known:
            probes = probes_of(values, name)
            known[name] = None if probes is None else probes.any_of()
        return known[name]

    return hashes_under
