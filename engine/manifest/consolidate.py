"""Keeping a look-up to a few runs: runs in geometric sizes, merged as they come.

A new run takes in every run before it that is less than `RATIO` times what has been gathered so far. So each kept run
is at least that much larger than the next, their number grows with the logarithm of the entries, and an entry is
rewritten a logarithmic number of times. (One cumulative delta, as RFC-15 has it, rewrites itself at every commit.)

Shards of one run stand together and count as one; what is merged is cut into shards anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import groupby, pairwise

from ...errors import CorruptionError, FormatVersionError
from ...hfile_like import SortedFileReader, merge_runs
from ..storage import FileMissingError, Storage
from ..timeline import Run
from .runs import RunReaders
from .writing import Form

RATIO = 2


def appended(
    storage: Storage,
    readers: RunReaders,
    runs: tuple[Run, ...],
    new: tuple[Run, ...],
    path_of: Callable[[int], str],
    form: Form,
    *,
    leave_damaged: bool = False,
) -> tuple[Run, ...]:
    """The runs with a new one (of one shard or more), merged where it pays. A new run that was merged away is gone.

    Raises CorruptionError, FormatVersionError or FileMissingError for a damaged run; with `leave_damaged` it stays as
    it is, and only what is newer is merged.
    """
    levels = [tuple(shards) for _, shards in groupby(runs, key=lambda run: run.segments)]
    entries, first = _entries(new), len(levels)
    while first > 0 and _entries(levels[first - 1]) < RATIO * entries:
        first -= 1
        entries += _entries(levels[first])
    for start in range(first, len(levels)):
        parts = [run for level in levels[start:] for run in level] + list(new)
        segments = (min(run.segments[0] for run in parts), max(run.segments[1] for run in parts))
        try:
            merged = merged_runs(storage, readers, parts, path_of, segments, form, drop_tombstones=start == 0)
        except (CorruptionError, FormatVersionError, FileMissingError) as error:
            if not leave_damaged:
                raise
            warnings.warn(f"an index run is damaged and left out, so none is merged with it: {error}", stacklevel=2)
            continue
        for run in new:
            readers.forget(run)
            storage.delete(run.path)
        return (*(run for level in levels[:start] for run in level), *merged)
    return (*runs, *new)


def consolidated(
    storage: Storage, readers: RunReaders, runs: tuple[Run, ...], path_of: Callable[[int], str], form: Form
) -> tuple[Run, ...] | None:
    """All runs merged into one of one shard or more; None where they are one already."""
    if len({run.segments for run in runs}) < 2:
        return None
    segments = (min(run.segments[0] for run in runs), max(run.segments[1] for run in runs))
    return merged_runs(storage, readers, list(runs), path_of, segments, form, drop_tombstones=True)


def merged_runs(
    storage: Storage,
    readers: RunReaders,
    parts: list[Run],
    path_of: Callable[[int], str],
    segments: tuple[int, int],
    form: Form,
    *,
    drop_tombstones: bool,
) -> tuple[Run, ...]:
    """Runs, oldest first, merged into one of one shard or more. Tombstones have done their work only where nothing
    older is left for them to hide."""
    opened = [readers.reader(run) for run in parts]
    cuts = _cuts(opened, form.shard_bytes)
    ends = min(run.first_key for run in parts if run.entries), max(run.last_key for run in parts if run.entries)
    merged: list[Run] = []
    try:
        for start, stop in pairwise([None, *cuts, None]):
            path = path_of(len(merged))
            with storage.create(path) as sink:
                found = merge_runs(
                    opened,
                    sink,
                    drop_tombstones=drop_tombstones,
                    start=start,
                    stop=stop,
                    **form.options(),
                )
            if found.num_entries:
                first, last = ends[0] if start is None else start.hex(), ends[1] if stop is None else stop.hex()
                merged.append(Run(path, found.size_bytes, found.num_entries, segments, first, last))
            else:
                storage.delete(path)
    except BaseException:
        for run in merged:
            storage.delete(run.path)
        raise
    return tuple(merged)


def _cuts(runs: list[SortedFileReader], shard_bytes: int) -> list[bytes]:
    """Keys between which about `shard_bytes` of the runs lie; none where they are not much more than that."""
    blocks = sorted((block.first_key, block.length) for run in runs for block in run.blocks())
    total = sum(length for _, length in blocks)
    if total < 2 * shard_bytes:
        return []
    cuts: list[bytes] = []
    gathered = 0
    for key, length in blocks:
        if gathered >= shard_bytes and (not cuts or key > cuts[-1]):
            cuts.append(key)
            gathered = 0
        gathered += length
    return cuts


def _entries(shards: tuple[Run, ...]) -> int:
    return sum(run.entries for run in shards)
