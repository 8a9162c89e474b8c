"""Which index files an index's runs name: those that it reads its fine level from, task index files, and runs that hold
fine filters."""

from __future__ import annotations

from ..state import IndexState, Run
from ..state.runs import RunReaders
from .protocol import known_kind


def fine_paths(readers: RunReaders, index: IndexState, run: Run) -> set[str] | None:
    """The paths in one run, of files long gone too; None where nobody knows, the index being of a kind that is not
    known here. Raises what a damaged run, or one that is gone, raises."""
    kind = known_kind(index.kind)
    return None if kind is None else kind.fine_paths(readers, run)
