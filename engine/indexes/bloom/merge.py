"""Merging the runs of a filter index: those that commits leave, and all of them, by `optimize`.

Merging puts the coarse filters of the same tasks in groups together, so that one read probes all of them. Runs are of
geometric sizes (`state/merge_policy.py`), and a commit writes no more than `commit_bytes`. So there are at most

    1 + log(entries of all runs) / log(ratio) + 2 * bytes of all runs / commit_bytes

runs however many commits there were, and after optimize 2 + 2 * bytes of all groups / RUN_BYTES_MAX: each costs a
look-up three requests where nothing of it is cached, and one afterwards, side by side. See docs/decisions/0011.

A merged run is one matrix, written a bounded number of rows at a time: tasks of like sizes form one group, however many
they are. A member is never folded below what it holds; where a group is larger its rows are repeated, and where it was
in a larger one the repeated rows are left out (rule 31). Fine filters stay where they are, in whatever file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....base.arrays import from_numpy, positions, string_array
from ....bloom import SplitBlockFilter, plan_sizes
from ....errors import CorruptionError
from ....hfile_like import SortedFileReader, SortedFileWriter, read_strided_rows
from ...state import IndexState, Run
from ...state.merge_policy import MergePolicy
from ...state.runs import DAMAGE, check_written_as, written_as
from ...storage import Ranged, Storage
from ..protocol import CommitWork
from .coarse_groups import CoarseGroups, section_name
from .format import KEYS, KIND_FILE, PLACE_SCHEMA, RUN_SCHEMA, FilterRunWriter, Tasks, write_entries

POLICY = MergePolicy(commit_bytes=512 << 20, commit_share=0, levels_max=None, small_bytes=16 << 20)
# What optimize makes of them: runs that can still be written again at once, entries that fit in memory.
RUN_BYTES_MAX = 16 << 30
RUN_FILES_MAX = 1 << 20


def merged_filters(storage: Storage, runs: tuple[Run, ...], path_of: Callable[[], str]) -> tuple[Run, ...]:
    """The runs of a filter index, oldest first, of which the last is new: some of them as one where that pays.

    A new run that was merged away is gone; `path_of` gives the path of a merged one. A damaged run stays as it is, and
    so do those before it.
    """
    new = runs[-1]
    sizes = [(run.entries, run.size_bytes) for run in runs[:-1]]
    first = POLICY.first_merged(sizes, new.entries, new.size_bytes)
    for is_readable in (_is_there, _is_whole):  # all of a run is looked at only where merging met damage
        chosen = runs[first:]
        bad = [i for i, run in enumerate(chosen) if not is_readable(storage, run)]
        chosen = chosen[bad[-1] + 1 :] if bad else chosen
        if len(chosen) < 2:
            break
        try:
            opened = [OpenRun.of(storage, run) for run in chosen]
            merged = join_runs(storage, opened, path_of(), _segments(opened))
        except DAMAGE:
            continue
        storage.delete(runs[-1].path)
        return _with(runs, chosen, merged)
    return runs


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
        live: uint64, ascending: the files of the table. Entries of others are dropped. None: all stay.
        before: runs that were made of others before, by the paths of these; those made now are added.
    """
    before = {} if before is None else before
    for sources, earlier in before.items():
        # A commit may have merged some of the sources otherwise meanwhile: their files are then in two runs.
        runs = _with(runs, [run for run in runs if run.path in sources], earlier)
    origins: dict[str, tuple[str, ...]] = {run.path: (run.path,) for run in runs}
    sizes = {run.path: size for run in runs if (size := _size_of(storage, run, live)) is not None}
    written: list[Run] = []
    while (chosen := _next(runs, sizes)) is not None:
        opened = [one for run in chosen if (one := _opened(storage, run)) is not None]
        try:
            if len(opened) < len(chosen):
                raise CorruptionError("a filter run is damaged")
            merged = join_runs(storage, opened, path_of(), _segments(opened), live)
        except DAMAGE:
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
        keeps_oldest = len(chosen) > 1 and POLICY.keeps_oldest([sizes[run.path][0] for run in chosen])
        if keeps_oldest and not POLICY.is_obsolete(*sizes[chosen[0].path]):
            chosen = chosen[1:]
        if len(chosen) > 1 or (chosen and POLICY.is_obsolete(*sizes[chosen[0].path])):
            return chosen
    return None


def _size_of(storage: Storage, run: Run, live: np.ndarray | None) -> Size | None:
    """None for a run that is damaged."""
    opened = _opened(storage, run)
    if opened is None:
        return None
    files, coarse = opened.file_count, opened.coarse
    if live is None:
        return opened.coarse_bytes, files, 0
    live_files = np.searchsorted(live, coarse.last, side="right") - np.searchsorted(live, coarse.first)
    return opened.coarse_bytes, files, files - int(live_files.sum())


def _opened(storage: Storage, run: Run) -> OpenRun | None:
    try:
        return OpenRun.of(storage, run)
    except DAMAGE:
        return None


def _is_there(storage: Storage, run: Run) -> bool:
    return _opened(storage, run) is not None


def _is_whole(storage: Storage, run: Run) -> bool:
    opened = _opened(storage, run)
    return opened is not None and not opened.reader.verify()


def _segments(opened: Sequence[OpenRun]) -> tuple[int, int]:
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
            coarse = SplitBlockFilter(np.ascontiguousarray(rows).view(np.uint32), located[0][2].hash_name)
            writer.add_task(located, coarse)
        run = writer.finish((after.version, after.version))

    runs = merged_filters(storage, (*index.runs, run), lambda: writing.path(f"i{index.id}m"))
    return replace(index, runs=runs, coverage=index.coverage.with_segment(after.version, holes))


MEMBERS_MAX = 1 << 15  # of a group: a row of 1 MiB
CHUNK_BYTES = 16 << 20  # of rows that are read and written at once


@dataclass
class OpenRun:
    """A run that is to be joined with others."""

    run: Run
    reader: SortedFileReader
    coarse: CoarseGroups

    @classmethod
    def of(cls, storage: Storage, run: Run) -> OpenRun:
        """Raises CorruptionError, FormatVersionError, FileMissingError."""
        reader = SortedFileReader(Ranged(storage, run.path, run.size_bytes))
        check_written_as(reader, run.path)
        return cls(run, reader, CoarseGroups.of(reader))

    @property
    def coarse_bytes(self) -> int:
        """Of its groups."""
        return sum(section.length_bytes for section in self.coarse.sections(self.reader))

    @property
    def file_count(self) -> int:
        """The number of its files."""
        return int((self.coarse.last - self.coarse.first).sum()) + len(self.coarse.first)


@dataclass
class _Files:
    """The files of one run: numbers, places of the fine filters; and pairs, int64 [m, 2], of a file and a task that it
    is in (among those of all runs)."""

    ids: np.ndarray
    pairs: np.ndarray
    places: pa.Table


def join_runs(
    storage: Storage,
    runs: Sequence[OpenRun],
    path: str,
    segments: tuple[int, int],
    live: np.ndarray | None = None,
) -> Run | None:
    """Some runs, oldest first, as one at `path`; durable on return. None, and no file, where nothing is left.

    Of a file in several, the newest counts; files that are not among the `live` ones (uint64, ascending) are left out,
    and so are tasks that have no other. Raises CorruptionError where a run turns out damaged.
    """
    starts = np.cumsum([0, *(run.coarse.members for run in runs)])
    parts = [_files_of(run, int(start)) for run, start in zip(runs, starts, strict=False)]
    bases = np.cumsum([0, *(len(part.ids) for part in parts)])
    ids = np.concatenate([part.ids for part in parts])
    numbers_of = np.arange(len(ids))
    newest = len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]
    is_kept = np.zeros(len(ids), dtype=bool)
    is_kept[newest] = True
    if live is not None:
        is_kept &= positions(live, ids) >= 0
    if not is_kept.any():
        return None
    chosen = numbers_of[is_kept]
    pairs = np.concatenate([part.pairs + np.array([base, 0]) for part, base in zip(parts, bases, strict=False)])
    pairs = pairs[is_kept[pairs[:, 0]]]
    pairs[:, 0] = np.searchsorted(chosen, pairs[:, 0])
    places = pa.concat_tables([part.places for part in parts]).take(from_numpy(chosen))
    used = np.unique(pairs[:, 1])
    with ExitStack() as stack:
        sink = stack.enter_context(storage.create(path))
        writer = stack.enter_context(SortedFileWriter(sink, schema=RUN_SCHEMA, use="get", metas=written_as(path)))
        coarse = CoarseGroups()
        order = [_write_group(writer, coarse, runs, starts, *group) for group in _planned(runs, starts, used)]
        numbers = np.empty(int(starts[-1]), dtype=np.int64)
        numbers[np.concatenate(order)] = np.arange(len(used))
        pairs[:, 1] = numbers[pairs[:, 1]]
        write_entries(writer, ids[chosen], pairs, places, coarse)
        writer.close()
    return Run(path, writer.size_bytes, writer.num_entries, segments)


def _files_of(run: OpenRun, first_member: int) -> _Files:
    entries = run.reader.by_id(KEYS.prefix(kind=KIND_FILE)).scan(PLACE_SCHEMA.names)
    tasks = Tasks.of(run.reader)
    member = np.repeat(np.arange(len(tasks.starts) - 1), np.diff(tasks.starts))
    if not np.array_equal(np.unique(tasks.files), entries.ids) or len(tasks.starts) - 1 != run.coarse.members:
        raise CorruptionError("the files of a filter run are not those of its tasks", path=run.reader.name)
    places = pa.Table.from_arrays([entries.columns[name] for name in PLACE_SCHEMA.names], schema=PLACE_SCHEMA)
    paths = pc.fill_null(places.column("fine_path"), string_array([run.run.path])[0])
    places = places.set_column(0, PLACE_SCHEMA.field("fine_path"), paths)
    pairs = np.stack([np.searchsorted(entries.ids, tasks.files), member + first_member], axis=1)
    return _Files(entries.ids, pairs, places)


def _planned(runs: Sequence[OpenRun], starts: np.ndarray, used: np.ndarray) -> Iterator[tuple[str, int, np.ndarray]]:
    """(hash, blocks, members) of each group to be written: members (numbers among those of all runs) ascend."""
    of_hash: dict[str, list[np.ndarray]] = {}
    for run, start in zip(runs, starts, strict=False):
        for group, name in enumerate(run.coarse.hashes):
            first, stop = run.coarse.starts[group : group + 2] + start
            low, high = np.searchsorted(used, (first, stop))
            if high > low:
                of_hash.setdefault(name, []).append(used[low:high])
    rungs = np.concatenate([run.coarse.rungs for run in runs])
    for name, several in of_hash.items():
        members = np.concatenate(several)
        for blocks, chosen in plan_sizes([1 << rung for rung in rungs[members].tolist()]):
            for low in range(0, len(chosen), MEMBERS_MAX):
                yield name, blocks, members[chosen[low : low + MEMBERS_MAX]]


def _write_group(
    writer: SortedFileWriter,
    coarse: CoarseGroups,
    runs: Sequence[OpenRun],
    starts: np.ndarray,
    hash_name: str,
    blocks: int,
    members: np.ndarray,
) -> np.ndarray:
    """Writes one group and gives its members."""
    rungs = np.concatenate([run.coarse.rungs for run in runs])[members]
    name = coarse.add_group(hash_name, rungs)
    writer.write_strided(name, _rows(list(_sources(runs, starts, members)), blocks, len(members)), 32 * len(members))
    return members


@dataclass
class _GroupSource:
    """The members of a new group that come from one group of a run: their columns there, and their
    places in the new one."""

    reader: SortedFileReader
    name: str
    blocks: int
    stride: int
    columns: np.ndarray
    places: np.ndarray


def _sources(runs: Sequence[OpenRun], starts: np.ndarray, members: np.ndarray) -> Iterator[_GroupSource]:
    for run, start in zip(runs, starts, strict=False):
        for group, section in enumerate(run.coarse.sections(run.reader)):
            first, stop = (run.coarse.starts[group : group + 2] + start).tolist()
            low, high = np.searchsorted(members, (first, stop)).tolist()
            if high > low:
                columns = members[low:high] - first
                yield _GroupSource(
                    run.reader, section_name(group), section.rows, section.stride, columns, np.arange(low, high)
                )


def _rows(sources: Sequence[_GroupSource], blocks: int, members: int) -> Iterator[np.ndarray]:
    """uint8 [n, 32 * members], some rows at a time."""
    widest = max(source.stride for source in sources)
    at_once = max(1, CHUNK_BYTES // (32 * members + widest))
    for start in range(0, blocks, at_once):
        rows = np.arange(start, min(blocks, start + at_once))
        out = np.empty((len(rows), members, 8), dtype=np.uint32)
        for source in sources:
            # Row b of `blocks` is row b * n // blocks of n: the first of those that repeat it, or the one repeated.
            wanted, row_of = np.unique(rows * source.blocks // blocks, return_inverse=True)
            table = source.reader.read_strided([(source.name, wanted)])[0]
            words = np.ascontiguousarray(table).view(np.uint32).reshape(len(wanted), -1, 8)
            out[:, source.places] = words[row_of.reshape(-1)[:, None], source.columns]
        yield out.view(np.uint8).reshape(len(rows), 32 * members)
