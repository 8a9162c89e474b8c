"""Merge the runs of a filter index: the last runs at a commit, all runs by `optimize`.

Merging puts the filters over files into larger groups, so that one read probes all of them. Runs have geometric sizes
(`state/run_format.py`), and a commit writes at most `commit_bytes`. So there are at most

    1 + log(entries of all runs) / log(ratio) + 2 * bytes of all runs / commit_bytes

runs after any number of commits, and after optimize 2 + 2 * bytes of all groups / RUN_BYTES_MAX. Each run costs a
look-up three requests if nothing is cached, and one afterwards, in parallel. See docs/decisions/filters.md.

A merged run is written a bounded number of rows at a time: filters of similar sizes form one group of any size. A
member keeps its original size: in a larger group its rows are repeated, in a smaller one the repeated rows are left out
(rule 31). The filters of row groups are not moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....base.arrays import from_numpy, index_of, to_numpy
from ....bloom import plan_repeats
from ....errors import CorruptionError
from ....hfile_like import RowTable, SortedFileReader, SortedFileWriter
from ...state import IndexState, Run
from ...state.run_format import MergePolicy
from ...state.runs import DAMAGE, check_written_as, warn_of_damage, written_as
from ...storage import Ranged, Storage
from ..kind import CommitContext
from ..task_result import IndexPart
from .coarse_groups import WHOLE_FILE, CoarseGroups, section_name
from .format import KEYS, KIND_FILE, PLACE_SCHEMA, RUN_SCHEMA, Members, write_entries

POLICY = MergePolicy(commit_bytes=512 << 20, commit_share=0, levels_max=None, small_bytes=16 << 20)
# The limits of optimize: runs that can still be rewritten, entries that fit in memory.
RUN_BYTES_MAX = 16 << 30
RUN_FILES_MAX = 1 << 20


def appended_filters(
    storage: Storage, runs: tuple[Run, ...], new: Sequence[OpenRun], segment: int, path_of: Callable[[], str]
) -> tuple[Run, ...]:
    """Return the runs of a filter index, oldest first, with the filters of a new segment, which are written once,
    joined with the last runs if that is cheap. A damaged run and those before it stay unchanged."""
    entries, size_bytes = (sum(sizes) for sizes in zip(*((o.run.entries, o.run.size_bytes) for o in new), strict=True))
    first = POLICY.first_merged([(run.entries, run.size_bytes) for run in runs], entries, size_bytes)
    for start in range(first, len(runs) + 1):
        segments = (min([segment, *(run.segments[0] for run in runs[start:])]), segment)
        try:
            opened = [*(OpenRun.of(storage, run) for run in runs[start:]), *new]
            joined = join_runs(storage, opened, path_of(), segments)
        except DAMAGE as error:
            if start == len(runs):  # the new filters are damaged or missing: the commit fails
                raise
            warn_of_damage(error)
            continue
        return (*runs[:start], *([joined] if joined else []))
    raise AssertionError("the last round joins nothing old")


def merged_all(
    storage: Storage, runs: tuple[Run, ...], path_of: Callable[[], str], live: np.ndarray | None = None
) -> tuple[Run, ...]:
    """Return the runs of a filter index, oldest first, merged into few by optimize; `runs` if they are few already, or
    one is damaged.

    Args:
        path_of: returns the path of the next run to write; a run that is not in the result is deleted.
        live: uint64, ascending: the files of the table. Entries of others are dropped. None: keep all.
    """
    result, written = runs, list[Run]()
    try:
        sizes = {run.path: _size_of(storage, run, live) for run in runs}
        while (chosen := _next(result, sizes)) is not None:
            opened = [OpenRun.of(storage, run) for run in chosen]
            merged = join_runs(storage, opened, path_of(), _segments(opened), live)
            result = _with(result, chosen, merged)
            if merged is not None:
                written.append(merged)
                sizes[merged.path] = _size_of(storage, merged, live)
    except DAMAGE as error:
        warn_of_damage(error)
        result = runs
    for run in written:
        if run not in result:
            storage.delete(run.path)
    return result


def _with(runs: tuple[Run, ...], sources: Sequence[Run], merged: Run | None) -> tuple[Run, ...]:
    """Return the runs with `merged` in place of its sources."""
    first = runs.index(sources[0])
    later = [run for run in runs[first:] if run not in sources]
    return (*runs[:first], *([merged] if merged else []), *later)


Size = tuple[int, int, int]  # bytes of groups, files, removed files


def _next(runs: Sequence[Run], sizes: dict[str, Size]) -> list[Run] | None:
    """Return the next runs to merge: neighbours, or one with many removed files; else None."""
    bins: list[list[Run]] = [[]]
    for run in runs:
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


def _size_of(storage: Storage, run: Run, live: np.ndarray | None) -> Size:
    """Return the size of a run. Raise the errors of `OpenRun.of`."""
    opened = OpenRun.of(storage, run)
    files = opened.coarse.files
    return opened.coarse_bytes, files.count, 0 if live is None else files.count_missing(live)


def _segments(opened: Sequence[OpenRun]) -> tuple[int, int]:
    return min(one.run.segments[0] for one in opened), max(one.run.segments[1] for one in opened)


def committed_filters(index: IndexState, work: CommitContext) -> IndexState:
    """Return the index with the filters of the parts that a commit's tasks built. Files without a filter are holes."""
    found = work.parts_of(index)
    if found is None:
        return index
    parts, holes = found
    writing, attempts, runs = work.writing, count(), index.runs
    if opened := [OpenRun.of(writing.storage, part.run, part, ids) for part, ids in parts if part.run is not None]:
        runs = appended_filters(
            writing.storage, runs, opened, work.version, lambda: writing.path(f"i{index.id}-{next(attempts)}")
        )
    return replace(index, runs=runs, coverage=index.coverage.with_segment(work.version, holes))


MEMBERS_MAX = 1 << 13  # of a group: a row of 256 KiB
CHUNK_BYTES = 16 << 20  # of rows that are read and written at a time


@dataclass
class OpenRun:
    """A run to be joined with others. The run of a `part` contains the task's numbers of files instead of ids;
    `file_ids`: of the task's files, by ordinal."""

    run: Run
    reader: SortedFileReader
    coarse: CoarseGroups
    part: IndexPart | None = None
    file_ids: np.ndarray | None = None

    @classmethod
    def of(
        cls, storage: Storage, run: Run, part: IndexPart | None = None, file_ids: np.ndarray | None = None
    ) -> OpenRun:
        """Open a run. Raise CorruptionError, FormatVersionError, FileMissingError."""
        reader = SortedFileReader(Ranged(storage, run.path, run.size_bytes))
        check_written_as(reader, run.path)
        return cls(run, reader, CoarseGroups.of(reader), part, file_ids)

    def ids_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the ids of files by their numbers in the run: uint64 [n]."""
        if self.part is None or self.file_ids is None:
            return numbers
        return self.part.ids_of(numbers, self.file_ids)

    @property
    def coarse_bytes(self) -> int:
        """The size of its groups in bytes."""
        return sum(section.length_bytes for section in self.coarse.sections(self.reader))


def join_runs(
    storage: Storage,
    runs: Sequence[OpenRun],
    path: str,
    segments: tuple[int, int],
    live: np.ndarray | None = None,
) -> Run | None:
    """Join runs, oldest first, into one at `path`, durable on return. Return None, without a file, if it is empty.

    For a file in several runs the newest applies. Files that are not `live` (uint64, ascending) are left out. Raise
    CorruptionError if a run is damaged.
    """
    starts = np.cumsum([0, *(run.coarse.members for run in runs)])
    entries = [_entries_of(run) for run in runs]
    ids = np.concatenate([own for own, _, _ in entries])
    run_of = np.repeat(np.arange(len(runs)), [len(own) for own, _, _ in entries])
    newest = len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]  # by ascending ids
    if live is not None:
        newest = newest[index_of(live, ids[newest]) >= 0]
    if not len(newest):
        return None
    every = Members(
        np.concatenate([own.files for _, _, own in entries]), np.concatenate([own.row_groups for _, _, own in entries])
    )
    member_run = np.repeat(np.arange(len(runs)), np.diff(starts))
    owner = index_of(ids[newest], every.files)
    used = np.flatnonzero((owner >= 0) & (run_of[newest][owner] == member_run))
    with ExitStack() as stack:
        sink = stack.enter_context(storage.create(path))
        writer = stack.enter_context(SortedFileWriter(sink, schema=RUN_SCHEMA, use="get", metas=written_as(path)))
        coarse = CoarseGroups()
        planned = list(_planned(runs, starts, used))
        sections = [_write_group(writer, coarse, runs, starts, *group) for group in planned]
        order = np.concatenate([np.empty(0, dtype=np.int64), *(members for *_, members in planned)])
        places = pa.concat_tables([places for _, places, _ in entries]).take(from_numpy(newest))
        write_entries(writer, ids[newest], places, every.selected(order), coarse, sections)
        writer.close()
    return Run(path, writer.size_bytes, writer.num_entries, segments)


def _entries_of(run: OpenRun) -> tuple[np.ndarray, pa.Table, Members]:
    """Return a run's files (uint64), their filters' places (PLACE_SCHEMA, null if in groups of the run), and
    members."""
    entries = run.reader.by_id(KEYS.prefix(kind=KIND_FILE)).scan(PLACE_SCHEMA.names)
    members = Members.of(run.reader)
    others = entries.ids[run.coarse.others.contains(entries.ids)]
    every = np.union1d(members.files, others)
    if not np.array_equal(every, entries.ids) or len(members.files) != run.coarse.members:
        raise CorruptionError("the files of a filter run are not those of its members", path=run.reader.name)
    places = pa.Table.from_arrays([entries.columns[name] for name in PLACE_SCHEMA.names], schema=PLACE_SCHEMA)
    is_here = to_numpy(pc.and_(pc.is_null(places.column("fine_path")), pc.is_valid(places.column("fine_offset"))))
    in_groups = is_here & np.isin(entries.ids, members.files[members.row_groups != WHOLE_FILE])
    columns = {
        field.name: pc.if_else(from_numpy(in_groups), pa.nulls(len(places), field.type), places.column(field.name))
        for field in PLACE_SCHEMA
        if field.name != "hash"
    }
    columns["fine_path"] = pc.if_else(from_numpy(is_here & ~in_groups), run.run.path, columns["fine_path"])
    places = pa.table({**columns, "hash": places.column("hash")}).select(PLACE_SCHEMA.names).cast(PLACE_SCHEMA)
    return run.ids_of(entries.ids), places, Members(run.ids_of(members.files), members.row_groups)


def _planned(
    runs: Sequence[OpenRun], starts: np.ndarray, used: np.ndarray
) -> Iterator[tuple[str, float, int, np.ndarray]]:
    """Yield (hash, rate, blocks, members) of each group to write; members (numbered over all runs) ascend."""
    of_hash: dict[str, list[np.ndarray]] = {}
    for run, start in zip(runs, starts, strict=False):
        for group, name in enumerate(run.coarse.hashes):
            first, stop = run.coarse.starts[group : group + 2] + start
            low, high = np.searchsorted(used, (first, stop))
            if high > low:
                of_hash.setdefault(name, []).append(used[low:high])
    sizes = np.concatenate([run.coarse.sizes for run in runs])
    fpps = np.concatenate([np.repeat(np.array(c.fpps), np.diff(c.starts)) for c in (run.coarse for run in runs)])
    for name, several in of_hash.items():
        members = np.concatenate(several)
        for blocks, chosen in plan_repeats(sizes[members].tolist()):
            for low in range(0, len(chosen), MEMBERS_MAX):
                part = members[chosen[low : low + MEMBERS_MAX]]
                yield name, float(fpps[part].max()), blocks, part


def _write_group(
    writer: SortedFileWriter,
    coarse: CoarseGroups,
    runs: Sequence[OpenRun],
    starts: np.ndarray,
    hash_name: str,
    fpp: float,
    blocks: int,
    members: np.ndarray,
) -> RowTable:
    """Write one group."""
    sizes = np.concatenate([run.coarse.sizes for run in runs])[members]
    name = coarse.add_group(hash_name, sizes, fpp)
    rows = _rows(list(_sources(runs, starts, members)), blocks, len(members))
    return writer.write_rows(name, rows, 32 * len(members))


@dataclass
class _GroupSource:
    """The members of a new group from one group of a run: their columns there, and their positions in the new one."""

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
    """Yield the rows of a group, some at a time: uint8 [n, 32 * members]."""
    widest = max(source.stride for source in sources)
    at_once = max(1, CHUNK_BYTES // (32 * members + widest))
    for start in range(0, blocks, at_once):
        rows = np.arange(start, min(blocks, start + at_once))
        out = np.empty((len(rows), members, 8), dtype=np.uint32)
        for source in sources:
            # Row b of `blocks` is row b * n // blocks of n: the first of its repeats, or the repeated row.
            wanted, row_of = np.unique(rows * source.blocks // blocks, return_inverse=True)
            table = source.reader.read_rows([(source.name, wanted)])[0]
            words = np.ascontiguousarray(table).view(np.uint32).reshape(len(wanted), -1, 8)
            out[:, source.places] = words[row_of.reshape(-1)[:, None], source.columns]
        yield out.view(np.uint8).reshape(len(rows), 32 * members)
