"""Keeping a look-up to a few runs: runs in geometric sizes, merged as they come.

A new run takes in every run before it that is less than `RATIO` times what has been gathered so far. So each kept run
is at least that much larger than the next, their number grows with the logarithm of the entries, and an entry is
rewritten a logarithmic number of times. (One cumulative delta, as RFC-15 has it, rewrites itself at every commit.)
"""

from __future__ import annotations

from ...hfile_like import merge_runs
from ..storage import Storage
from ..timeline import Run
from .runs import RunReaders

RATIO = 2


def appended(
    storage: Storage, readers: RunReaders, runs: tuple[Run, ...], new: Run, merged_path: str
) -> tuple[Run, ...]:
    """The runs with a new one, merged where it pays. A new run that was merged away is removed."""
    entries, first = new.entries, len(runs)
    while first > 0 and runs[first - 1].entries < RATIO * entries:
        first -= 1
        entries += runs[first].entries
    if first == len(runs):
        return (*runs, new)
    parts = [*runs[first:], new]
    with storage.create(merged_path) as sink:
        # Tombstones have done their work only where nothing older is left for them to hide.
        summary = merge_runs([readers.reader(r) for r in parts], sink, drop_tombstones=first == 0)
    readers.forget(new)
    storage.delete(new.path)
    segments = (min(r.segments[0] for r in parts), max(r.segments[1] for r in parts))
    return (*runs[:first], Run(merged_path, summary.size_bytes, summary.num_entries, segments))
