"""Which task index files an index's runs name: those that it reads its fine level from."""

from __future__ import annotations

from ..manifest.runs import RunReaders
from ..timeline import IndexState, Run
from . import stats


def fine_paths(readers: RunReaders, index: IndexState, run: Run) -> set[str]:
    """The paths in one run, of files long gone too. Raises what a damaged run, or one that is gone, raises."""
    prefix = stats.fine_prefix() if index.kind == "stats" else b""
    named = readers.reader(run).scan_table(prefix=prefix, columns=["fine_path"])
    return set(named.column("fine_path").unique().to_pylist()) - {None}
