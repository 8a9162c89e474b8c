"""Asking the coarse filters: which files may hold the values that a predicate looks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from ...bloom import Probes
from ..indexes.filter_values import probes_of
from ..indexes.filters import FilterEntries, FilterPlaces, FilterRun
from ..indexes.stats import positions
from ..manifest.runs import RunReaders, reading_run
from ..predicates import Leaf
from ..timeline import IndexState


def ask(
    index: IndexState,
    asked: Mapping[Leaf, pa.Array],
    ids: np.ndarray,
    covered: np.ndarray,
    readers: RunReaders,
    damaged: Sequence[str],
) -> tuple[dict[Leaf, np.ndarray], FilterPlaces]:
    """(bool [value, file] for the values that each leaf asks for: False where the value cannot be there; where the fine
    filters lie) of files by number, of which the index may speak of those covered. Raises DamagedRun."""
    may = {leaf: np.ones((len(values), len(ids)), dtype=bool) for leaf, values in asked.items()}
    asked_as: dict[tuple[Leaf, str], Probes | None] = {}
    places = FilterPlaces.nowhere(len(ids))
    for run in index.runs:
        if run.path in damaged:
            continue
        with reading_run(run):
            opened = FilterRun(readers.reader(run), run, readers.decoded(run, FilterEntries, FilterEntries))
            at = positions(opened.entries.file_ids, ids)
            here = np.flatnonzero((at >= 0) & covered)
            for name in set(opened.entries.hash[at[here]].tolist()):
                is_named = opened.entries.hash[at[here]] == name
                for leaf, values in asked.items():
                    if (leaf, name) not in asked_as:
                        asked_as[leaf, name] = probes_of(values, name)
                    probes = asked_as[leaf, name]
                    if probes is not None:
                        hits = opened.may_contain(probes.questions, at[here][is_named])
                        may[leaf][:, here[is_named]] &= probes.answers(hits)
            places.add(opened, here, at[here])
    return may, places
