"""Keeping a look-up to a few filter runs: those that commits left are merged as they come, and all of them by optimize.

A merged run holds the coarse filters of the same tasks in groups together, so one read answers for all of them, and
says where the fine filters lie: those stay where they are. A commit takes in the runs before it while they have less
than `RATIO` times the entries that it has gathered, so that runs are of geometric sizes, and while it writes no more
than `COMMIT_BYTES`. So there are at most

    1 + log(entries of all runs) / log(RATIO) + 2 * bytes of all runs / COMMIT_BYTES

runs however many commits there were, and after optimize 2 + 2 * bytes of all groups / RUN_BYTES_MAX: each costs a
look-up three requests where nothing of it is known yet, and one afterwards, side by side. See docs/decisions/0011.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ....bloom import SplitBlockFilter
from ....errors import CorruptionError, FormatVersionError
from ....hfile_like import read_strided_rows
from ...state import IndexState, Run
from ...storage import FileMissingError, Ranged, Storage
from ..commit_work import CommitWork
from .format import FilterRunWriter
from .joining import Opened, join_runs

RATIO = 4
COMMIT_BYTES = 512 << 20
# What optimize makes of them: runs that can still be written again at once, entries that fit in memory.
RUN_BYTES_MAX = 16 << 30
RUN_FILES_MAX = 1 << 20
# The oldest run is written anew where the others, or what went of it, are an eighth of it; a small one in any case.
OLDEST_SHARE = 8
SMALL_BYTES = 16 << 20

DAMAGED = (CorruptionError, FormatVersionError, FileMissingError)


def merged_filters(storage: Storage, runs: tuple[Run, ...], path_of: Callable[[], str]) -> tuple[Run, ...]:
    """The runs of a filter index, oldest first, of which the last is new: some of them as one where that pays.

    A new run that was merged away is gone; `path_of` gives the path of a merged one. A damaged run stays as it is, and
    so do those before it.
    """
    for is_readable in (_is_there, _is_whole):  # all of a run is looked at only where merging met damage
        chosen = runs[_first_gathered(runs) :]
        bad = [at for at, run in enumerate(chosen) if not is_readable(storage, run)]
        chosen = chosen[bad[-1] + 1 :] if bad else chosen
        if len(chosen) < 2:
            break
        try:
            opened = [Opened.of(storage, run) for run in chosen]
            merged = join_runs(storage, opened, path_of(), _segments(opened))
        except DAMAGED:
            continue
        storage.delete(runs[-1].path)
        return _with(runs, chosen, merged)
    return runs


def _first_gathered(runs: Sequence[Run]) -> int:
    """The first of those runs that are merged with the newest."""
    first, entries, size_bytes = len(runs) - 1, runs[-1].entries, runs[-1].size_bytes
    while first > 0 and runs[first - 1].entries < RATIO * entries:
        size_bytes += runs[first - 1].size_bytes
        if size_bytes > COMMIT_BYTES:
            break
        first -= 1
        entries += runs[first].entries
    return first


def merged_all(
    storage: Storage,
    runs: tuple[Run, ...],
    path_of: Callable[[], str],
    live: np.ndarray | None = None,
    before: dict[tuple[str, ...], Run] | None = None,
) -> tuple[Run, ...]:
    """The runs of a filter index, oldest first, as few: what optimize makes of them. `runs` itself where that is so
    already.

    Args:
        path_of: the path of another run that is written; one that is not among the result is gone again.
        live: uint64, ascending: the files of the table. What runs hold of others is let go. None: all stays.
        before: runs that were made of others before, by the paths of these; those made now are added.
    """
    before = {} if before is None else before
    for sources, made in before.items():
        # A commit may have merged some of the sources otherwise meanwhile: their files are then in two runs.
        runs = _with(runs, [run for run in runs if run.path in sources], made)
    origins: dict[str, tuple[str, ...]] = {run.path: (run.path,) for run in runs}
    sizes = {run.path: size for run in runs if (size := _size_of(storage, run, live)) is not None}
    written: list[Run] = []
    while (chosen := _next(runs, sizes)) is not None:
        opened = [one for run in chosen if (one := _opened(storage, run)) is not None]
        try:
            if len(opened) < len(chosen):
                raise CorruptionError("a filter run is damaged")
            merged = join_runs(storage, opened, path_of(), _segments(opened), live)
        except DAMAGED:
            bad = [run for run in chosen if not _is_whole(storage, run)]
            for run in bad or chosen:
                del sizes[run.path]
            continue
        runs = _with(runs, chosen, merged)
        if merged is not None:
            written.append(merged)
            origins[merged.path] = tuple(path for run in chosen for path in origins[run.path])
            sizes[merged.path] = _size_of(storage, merged, live) or (merged.size_bytes, 0, 0)
    for run in written:
        if run in runs:
            before[origins[run.path]] = run
        else:
            storage.delete(run.path)
    return runs


def _with(runs: tuple[Run, ...], sources: Sequence[Run], merged: Run | None) -> tuple[Run, ...]:
    """The runs with one in the place of some, or none."""
    if not sources:
        return runs
    first = runs.index(sources[0])
    later = [run for run in runs[first:] if run not in sources]
    return (*runs[:first], *([merged] if merged else []), *later)


Size = tuple[int, int, int]  # bytes of groups, files, files that went


def _next(runs: Sequence[Run], sizes: dict[str, Size]) -> list[Run] | None:
    """The runs to be merged next: neighbours, but for damaged ones, or one alone of which much went. None: none."""
    bins: list[list[Run]] = [[]]
    for run in runs:
        if run.path not in sizes:
            continue
        together = [sizes[one.path] for one in (*bins[-1], run)]
        if bins[-1] and (sum(s[0] for s in together) > RUN_BYTES_MAX or sum(s[1] for s in together) > RUN_FILES_MAX):
            bins.append([])
        bins[-1].append(run)
    for chosen in bins:
        weights = [sizes[run.path][0] for run in chosen]
        is_heavy = bool(chosen) and weights[0] > max(SMALL_BYTES, OLDEST_SHARE * sum(weights[1:]))
        if is_heavy and len(chosen) > 1 and not _is_worn(sizes[chosen[0].path]):
            chosen = chosen[1:]
        if len(chosen) > 1 or (chosen and _is_worn(sizes[chosen[0].path])):
            return chosen
    return None


def _is_worn(size: Size) -> bool:
    size_bytes, files, gone = size
    return gone > 0 and (size_bytes <= SMALL_BYTES or OLDEST_SHARE * gone >= files)


def _size_of(storage: Storage, run: Run, live: np.ndarray | None) -> Size | None:
    """None for a run that is damaged."""
    opened = _opened(storage, run)
    if opened is None:
        return None
    there, coarse = opened.file_count, opened.coarse
    if live is None:
        return opened.coarse_bytes, there, 0
    left = np.searchsorted(live, coarse.last, side="right") - np.searchsorted(live, coarse.first)
    return opened.coarse_bytes, there, there - int(left.sum())


def _opened(storage: Storage, run: Run) -> Opened | None:
    try:
        return Opened.of(storage, run)
    except DAMAGED:
        return None


def _is_there(storage: Storage, run: Run) -> bool:
    return _opened(storage, run) is not None


def _is_whole(storage: Storage, run: Run) -> bool:
    opened = _opened(storage, run)
    return opened is not None and not opened.reader.verify()


def _segments(opened: Sequence[Opened]) -> tuple[int, int]:
    return min(one.run.segments[0] for one in opened), max(one.run.segments[1] for one in opened)


def committed_filters(index: IndexState, work: CommitWork) -> IndexState:
    """The index with a run of the filters that a commit's tasks carry for it. Files without a filter are holes; with
    none at all the segment stays uncovered."""
    paths = {number: path for path, number in work.named_at.columns.items()}
    column = paths.get(index.columns[0])  # none: it was added since, and no task knew of it
    carried = [r.index is not None and column in r.index.task_filters for r in work.results]
    if index.maintain != "commit" or column is None or not any(carried):
        return index
    writing, after, storage = work.writing, work.after, work.writing.storage
    holes: list[int] = []
    path = writing.path(f"i{index.id}")
    with FilterRunWriter(storage, path, index.options["fpp"]) as writer:
        for result, file_ids in zip(work.results, (files.ids for files in work.added), strict=True):
            if result.index is None or column not in result.index.task_filters:
                holes += file_ids.tolist()
                continue
            fine = result.index.file_filters.get(column, [None] * len(file_ids))
            located = [(i, result.index.path, f) for i, f in zip(file_ids.tolist(), fine, strict=True) if f is not None]
            holes += [i for i, f in zip(file_ids.tolist(), fine, strict=True) if f is None]
            if not located:
                continue
            section = result.index.task_filters[column]
            rows = read_strided_rows(Ranged(storage, result.index.path), section, np.arange(section.rows))
            whole = SplitBlockFilter(np.ascontiguousarray(rows).view(np.uint32), located[0][2].hash_name)
            writer.add_task(located, whole)
        run = writer.finish((after.version, after.version))

    runs = merged_filters(storage, (*index.runs, run), lambda: writing.path(f"i{index.id}m"))
    return replace(index, runs=runs, coverage=index.coverage.with_segment(after.version, holes))
