"""Find the index that lists the rows with given values of some columns, the files that it covers, and its reader."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..state import IndexState, Instant
from ..state.coverage import covered_files, without_lost
from ..state.snapshot import Snapshot
from .kind import kind_named, kind_or_none
from .probe_results import Positions

if TYPE_CHECKING:
    from .secondary.reader import SecondaryReader


def leading_names(instant: Instant, index: IndexState, names: Collection[str]) -> list[str]:
    """Return the leading columns of an index's key that are among `names`, up to the first that is not."""
    key = instant.names_of(index)
    return key[: next((i for i, name in enumerate(key) if name not in names), len(key))]


def best_index(instant: Instant, names: Collection[str]) -> IndexState | None:
    """Return the secondary index on these columns, else the one with the most leading columns among them, else None."""

    def is_usable(index: IndexState) -> bool:
        kind = kind_or_none(index.kind)
        is_current = kind is not None and kind.lists_rows and kind.is_current(instant, index)
        return is_current and index.columns[0] in instant.columns.values()

    current = [index for index in instant.indexes if is_usable(index)]

    def rank(index: IndexState) -> tuple[bool, int]:
        is_other = set(instant.names_of(index)) != set(names)
        return is_other, -len(leading_names(instant, index, names))

    ranked = sorted(current, key=rank)
    return ranked[0] if ranked and leading_names(instant, ranked[0], names) else None


def reader_of(snapshot: Snapshot, index: IndexState, damaged: Collection[str] = ()) -> SecondaryReader:
    """Return a reader of an index's runs, without the damaged ones."""
    runs = [run for run in index.runs if run.path not in damaged]
    reader = kind_named(index.kind).rows_reader(snapshot, index, runs)
    assert reader is not None
    return reader


def covered_by(snapshot: Snapshot, index: IndexState, ids: np.ndarray, damaged: Collection[str] = ()) -> np.ndarray:
    """Return the files (bool) whose rows the index covers with undamaged runs. `ids`: uint64, ascending."""
    covered = covered_files(index, snapshot.instant.version, ids, snapshot.segments)
    return without_lost(covered, ids, index.runs, damaged, snapshot.segments)


def concatenated(parts: Sequence[Positions]) -> Positions:
    """Return all rows in one `Positions`."""
    if not parts:
        return Positions(np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0, np.int64))
    return Positions(*(np.concatenate(column) for column in zip(*parts, strict=True)))
