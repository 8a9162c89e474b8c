"""Keeping a look-up to a few filter runs: those that commits left are merged as they come, in geometric sizes.

A merged run holds the coarse filters of the same tasks in groups together, so one read answers for up to a thousand
commits, and says where the fine filters lie: those stay in the tasks' own files. A run that holds fine filters itself
(of an index that was built or refreshed) is not merged, nor is what has grown to `MERGED_BYTES_MAX`: a group that large
is worth a read of its own, and too much to be written again by a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...bloom import SplitBlockFilter
from ...errors import CorruptionError, FormatVersionError
from ...hfile_like import SortedFileReader
from ..indexes.filter_values import filter_hash
from ..indexes.filters import FilterEntries, FilterRun, FilterRunWriter
from ..ingest.file_filter import FileFilter
from ..storage import FileMissingError, Ranged, Storage
from ..timeline import Run

RATIO = 2
MERGED_BYTES_MAX = 16 << 20

Task = tuple[list[tuple[int, str | None, FileFilter]], SplitBlockFilter]


def merged_filters(
    storage: Storage, runs: tuple[Run, ...], path_of: Callable[[], str], fpp: float | None
) -> tuple[Run, ...]:
    """The runs of a filter index, oldest first, of which the last is new: the last ones as one where that pays.

    A new run that was merged away is gone; `path_of` gives the path of a merged one. A damaged run stays as it is, and
    so do those before it.
    """
    first, entries, size_bytes = len(runs) - 1, runs[-1].entries, runs[-1].size_bytes
    while first > 0 and runs[first - 1].entries < RATIO * entries:
        first -= 1
        entries += runs[first].entries
        size_bytes += runs[first].size_bytes
        if size_bytes > MERGED_BYTES_MAX:
            first += 1
            break
    opened: list[FilterRun] = []
    for run in reversed(runs[first:] if len(runs) - first > 1 else ()):
        found = _opened(storage, run)
        if found is None:
            break
        opened.append(found)
    if len(opened) < 2:
        return runs
    kept, last = runs[: len(runs) - len(opened)], runs[len(runs) - len(opened) :]
    try:
        merged = _merge(storage, opened, path_of(), fpp, (last[0].segments[0], last[-1].segments[1]))
    except (CorruptionError, FormatVersionError, FileMissingError):
        return runs
    storage.delete(runs[-1].path)
    return (*kept, merged)


def _opened(storage: Storage, run: Run) -> FilterRun | None:
    """A run whose fine filters lie elsewhere; None for another, or one that is damaged."""
    try:
        reader = SortedFileReader(Ranged(storage, run.path, run.size_bytes))
        found = FilterRun(reader, run, FilterEntries(reader))
    except (CorruptionError, FormatVersionError, FileMissingError):
        return None
    return None if found.entries.table.column("fine_path").null_count else found


def _merge(
    storage: Storage, newest_first: list[FilterRun], path: str, fpp: float | None, segments: tuple[int, int]
) -> Run:
    seen: set[int] = set()
    tasks: list[Task] = []
    for run in newest_first:
        for files, whole in _tasks(run):
            left = [file for file in files if file[0] not in seen]
            if left:
                tasks.append((left, whole))
        seen.update(run.entries.file_ids.tolist())
    with FilterRunWriter(storage, path, fpp) as writer:
        for files, whole in reversed(tasks):
            writer.add_task(files, whole)
        return writer.finish(segments)


def _tasks(run: FilterRun) -> Iterator[Task]:
    """The tasks of a run, last first: their files with their fine filters, and the filter over all of them."""
    entries = run.entries
    places = np.stack([entries.group, entries.member], axis=1)
    for group in np.unique(entries.group)[::-1].tolist():
        section = run.reader.strided(f"coarse/{group}")
        rows = run.reader.read_strided(section.name, np.arange(section.rows))
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(section.rows, -1, 8)
        for member in np.unique(entries.member[entries.group == group])[::-1].tolist():
            at = np.flatnonzero((places == (group, member)).all(axis=1)).tolist()
            files: list[tuple[int, str | None, FileFilter]] = [(int(entries.file_ids[i]), *run.fine(i)) for i in at]
            yield files, SplitBlockFilter(np.ascontiguousarray(words[:, member]), filter_hash(files[0][2].hash_name))
