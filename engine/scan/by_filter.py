"""Asking the coarse filters: which files may hold the values that a predicate looks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ... import canon
from ...bloom import hash_array
from ..indexes.coverage import is_covered
from ..indexes.filters import FilterEntries, FilterPlaces, FilterRun
from ..indexes.stats import positions
from ..manifest.runs import reading_run
from ..manifest.snapshot import Snapshot
from ..predicates import Leaf, probe_values
from ..timeline import IndexState
from .gather import Gatherer
from .verdicts import AnyLeaf


@dataclass
class AskedFilter:
    """A filter index, and the leaves that it can speak of with the values that it is asked for."""

    index: IndexState
    column: str
    values: dict[Leaf, pa.Array]


def asked_filters(snapshot: Snapshot, leaves: Sequence[AnyLeaf]) -> list[AskedFilter]:
    """The filter indexes that can speak of some leaf."""
    asked = []
    for index in snapshot.instant.indexes:
        if index.kind == "bloom":
            column = snapshot.instant.path_of(index.columns[0])
            values: dict[Leaf, pa.Array] = {}
            for leaf in leaves:
                if isinstance(leaf, Leaf) and leaf.column == column and (wanted := probe_values(leaf)) is not None:
                    values[leaf] = wanted
            if values:
                asked.append(AskedFilter(index, column, values))
    return asked


def ask(
    asked: AskedFilter, ids: np.ndarray, segments_of: Callable[[np.ndarray], np.ndarray], gatherer: Gatherer
) -> tuple[dict[Leaf, np.ndarray], FilterPlaces]:
    """(bool [value, file] for each leaf: False where the value cannot be there; where the fine filters lie) of files by
    number. Raises DamagedRun."""
    coverage = asked.index.coverage
    hashed = {leaf: hash_array(values) for leaf, values in asked.values.items()}
    may = {leaf: np.ones((len(hashed[leaf].hashes), len(ids)), dtype=bool) for leaf in hashed}
    places = FilterPlaces.nowhere(len(ids))
    covered = np.ones(len(ids), dtype=bool)
    if not coverage.is_whole(gatherer.snapshot.instant.version):
        covered = is_covered(coverage, segments_of(ids), ids)
    readers = gatherer.snapshot.readers
    for run in asked.index.runs:
        if run.path in gatherer.damaged:
            continue
        with reading_run(run):
            opened = FilterRun(readers.reader(run), run, readers.decoded(run, FilterEntries, FilterEntries))
            at = positions(opened.entries.file_ids, ids)
            here = np.flatnonzero((at >= 0) & covered)
            for leaf, values in asked.values.items():
                name = canon.hash_name(values.type) or ""
                may[leaf][:, here] &= opened.may_contain(hashed[leaf].hashes, name, at[here])
            places.add(opened, here, at[here])
    return may, places
