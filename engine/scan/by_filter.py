"""Asking the coarse filters: which files may hold the values that a predicate looks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from ... import canon
from ...bloom import hash_array
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
    hashed = {leaf: hash_array(values) for leaf, values in asked.items()}
    may = {leaf: np.ones((len(hashed[leaf].hashes), len(ids)), dtype=bool) for leaf in hashed}
    places = FilterPlaces.nowhere(len(ids))
    for run in index.runs:
        if run.path in damaged:
            continue
        with reading_run(run):
            opened = FilterRun(readers.reader(run), run, readers.decoded(run, FilterEntries, FilterEntries))
            at = positions(opened.entries.file_ids, ids)
            here = np.flatnonzero((at >= 0) & covered)
            for leaf, values in asked.items():
                name = canon.hash_name(values.type) or ""
                may[leaf][:, here] &= opened.may_contain(hashed[leaf].hashes, name, at[here])
            places.add(opened, here, at[here])
    return may, places
