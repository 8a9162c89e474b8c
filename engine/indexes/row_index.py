"""The index that lists the rows with given values of some columns: which one, over which files, and its reader."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ..parquet.leaves import leaf_types
from ..state import IndexState, Instant
from ..state.coverage import covered_files, without_lost
from ..state.snapshot import Snapshot
from .kind import kind_named
from .probe_results import Positions
from .secondary.format import layout_of
from .secondary.reader import SecondaryReader


def leading_names(instant: Instant, index: IndexState, names: Collection[str]) -> list[str]:
    """The first columns of an index's key that are among some columns."""
    key = instant.names_of(index)
    return key[: next((i for i, name in enumerate(key) if name not in names), len(key))]


def best_index(instant: Instant, names: Collection[str]) -> IndexState | None:
    """The secondary index whose key is that of some columns, else the one of which most first columns are among them;
    None where there is none."""
    kind = kind_named("secondary")
    current = [
        index
        for index in instant.indexes
        if index.kind == kind.name and kind.is_current(instant, index) and index.columns[0] in instant.columns.values()
    ]

    def rank(index: IndexState) -> tuple[bool, int]:
        is_other = set(instant.names_of(index)) != set(names)
        return is_other, -len(leading_names(instant, index, names))

    ranked = sorted(current, key=rank)
    return ranked[0] if ranked and leading_names(instant, ranked[0], names) else None


def reader_of(snapshot: Snapshot, index: IndexState, damaged: Collection[str] = ()) -> SecondaryReader:
    """The runs of an index, for asking, less those that are damaged."""
    leaves = leaf_types(snapshot.instant.schema)
    runs = [run for run in index.runs if run.path not in damaged]
    kinds = [leaves[name] for name in snapshot.instant.names_of(index)]
    return SecondaryReader(snapshot.readers, runs, kinds, layout_of(index.options.get("include")))


def covered_by(snapshot: Snapshot, index: IndexState, ids: np.ndarray, damaged: Collection[str] = ()) -> np.ndarray:
    """bool [files]: those, by number (uint64, ascending), whose rows the index knows as far as its runs are sound."""
    covered = covered_files(index, snapshot.instant.version, ids, snapshot.segments)
    return without_lost(covered, ids, index.runs, damaged, snapshot.segments)


def concatenated(parts: Sequence[Positions]) -> Positions:
    """All of them."""
    if not parts:
        return Positions(np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0, np.int64))
    return Positions(*(np.concatenate(column) for column in zip(*parts, strict=True)))
