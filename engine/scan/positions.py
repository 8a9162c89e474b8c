"""Rows that an index names by their positions in a file: in which row groups they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...arrays import offsets_of
from ...errors import CorruptionError
from .tasks import FileTask


def held_counts(task: FileTask, row_counts: np.ndarray) -> np.ndarray:
    """int64 [row groups]: how many rows of `task.rows` each holds; `row_counts` is of all row groups of the file.

    Raises CorruptionError for a position that the file does not have.
    """
    return np.diff(_cuts(task, row_counts))


def within_groups(
    task: FileTask, row_counts: np.ndarray, kept: Sequence[int], deleted: np.ndarray | None
) -> list[tuple[int, np.ndarray]]:
    """(row group, positions within it) of `task.rows` that were not deleted, for those of the kept row groups that hold
    some. Raises as `held_counts`."""
    cuts, firsts = _cuts(task, row_counts), offsets_of(row_counts)
    found = []
    for group in kept:
        here = task.rows[cuts[group] : cuts[group + 1]]  # type: ignore[index]
        if deleted is not None:
            here = np.setdiff1d(here, deleted, assume_unique=True)
        if len(here):
            found.append((group, here - firsts[group]))
    return found


def _cuts(task: FileTask, row_counts: np.ndarray) -> np.ndarray:
    """int64 [row groups + 1]: where the positions of each row group begin in `task.rows`."""
    rows, firsts = task.rows, offsets_of(row_counts)
    assert rows is not None
    if len(rows) and (rows[0] < 0 or rows[-1] >= firsts[-1]):
        raise CorruptionError(
            f"an index names row {int(rows[0] if rows[0] < 0 else rows[-1]):,} of this file, which has "
            f"{int(firsts[-1]):,} rows; drop the index and create it anew",
            path=task.path,
            check="positions",
        )
    return np.searchsorted(rows, firsts)
