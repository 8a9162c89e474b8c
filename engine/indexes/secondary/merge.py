"""Merging the runs of a secondary index: those that commits leave, in geometric sizes; all of them, by `optimize`.

Merged entries are cut into new shards; a large shard between whose keys no other run has any stays as it is, under the
new run's segments.

The keys that a commit's tasks carry become entries of its segment: a task numbers its files by itself, and here those
numbers become file ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby

import numpy as np
import pyarrow as pa

from ....base.arrays import from_numpy
from ....base.ordered_keys import ordered_class
from ....hfile_like import SortedFileReader
from ...state import IndexState, Run
from ...state.manifest import split_file_ids
from ...state.merge_policy import MergePolicy
from ...state.run_writing import Level, level_bytes, level_sizes, levels_of
from ...state.runs import DAMAGE, RunReaders, check_written_as
from ...storage import Ranged, Storage
from ..protocol import CommitWork, MergeWork
from ..task_result import TaskResult
from .format import (
    ENTRY_SCHEMA,
    PLACE,
    RUN_SCHEMA,
    SecondaryForm,
    files_of,
    places_of,
    with_ending,
    without_place,
    write_entries,
)
from .sort import EntrySource, KeyRun, larger, merged_entries

POLICY = MergePolicy(commit_bytes=4 << 20)


@dataclass(frozen=True)
class NewEntries:
    """What a commit adds: what gives, each time that it is called, sources of entries that ascend by values; and about
    how many entries and bytes these are."""

    sources: Callable[[], Sequence[EntrySource]]
    entries: int
    size_bytes: int


def appended_entries(
    storage: Storage,
    readers: RunReaders,
    runs: tuple[Run, ...],
    new: NewEntries,
    segment: int,
    path_of: Callable[[int], str],
    form: SecondaryForm,
) -> tuple[Run, ...]:
    """The runs, oldest first, with the entries of a new segment, merged with the last ones where that is cheap: what is
    merged is written once. A damaged run stays as it is, and so do those before it."""
    levels = levels_of(runs)
    damage: Exception | None = None
    first = POLICY.first_merged(level_sizes(levels), new.entries, new.size_bytes)
    for start in range(first, len(levels) + 1):
        merged = [run for level in levels[start:] for run in level]
        segments = (min([segment, *(run.segments[0] for run in merged)]), segment)
        try:
            old = [source for level in levels[start:] for source in _sources(readers, level, None)]
            entries = merged_entries([*old, *new.sources()], by_values=True)
            written = write_entries(storage, path_of, entries, segments, form)
        except DAMAGE as error:
            if start == len(levels):  # what is new is damaged, or gone: there is no commit
                raise
            damage = error
            continue
        if damage is not None:
            warnings.warn(f"an index run is damaged and left out, so none is merged with it: {damage}", stacklevel=2)
        return (*(run for level in levels[:start] for run in level), *written)
    raise AssertionError("the last round merges nothing old")


def consolidated_entries(
    storage: Storage,
    readers: RunReaders,
    runs: tuple[Run, ...],
    live: np.ndarray,
    path_of: Callable[[int], str],
    form: SecondaryForm,
) -> tuple[Run, ...] | None:
    """The runs, oldest first, as one, or where the oldest is much larger than the others, as that and one more; without
    the entries of files that are not among `live` (uint64, ascending), where there are many. None where nothing is to
    be done. Raises CorruptionError, FormatVersionError or FileMissingError for a damaged run."""
    numbers = count()

    def next_path() -> str:
        return path_of(next(numbers))

    merged = _consolidated(storage, readers, runs, live, next_path, form)
    if merged is None or _kept_apart(levels_of(merged)) or len(levels_of(merged)) < 2:
        return merged
    # What was rewritten of the oldest is no longer much larger than the others.
    together = _consolidated(storage, readers, merged, live, next_path, form)
    assert together is not None
    for path in {run.path for run in merged} - {run.path for run in (*runs, *together)}:
        storage.delete(path)
    return together


def _consolidated(
    storage: Storage,
    readers: RunReaders,
    runs: tuple[Run, ...],
    live: np.ndarray,
    next_path: Callable[[], str],
    form: SecondaryForm,
) -> tuple[Run, ...] | None:
    """The same, by the sizes that the runs have before it."""
    levels = levels_of(runs)
    if not levels:
        return None
    result: list[Run] = []
    changed = False
    for part in ([levels[0]], levels[1:]) if _kept_apart(levels) else (levels,):
        segments = (min(level[0].segments[0] for level in part), max(level[0].segments[1] for level in part))
        merged = _merged_level(storage, readers, part, live, segments, next_path, form)
        changed |= merged is not None
        result += merged if merged is not None else [run for level in part for run in level]
    return tuple(result) if changed else None


def _kept_apart(levels: Sequence[Level]) -> bool:
    """Whether the oldest is much larger than the others."""
    return len(levels) > 1 and POLICY.keeps_oldest([level_bytes(level) for level in levels])


def _merged_level(
    storage: Storage,
    readers: RunReaders,
    levels: Sequence[Level],
    live: np.ndarray,
    segments: tuple[int, int],
    next_path: Callable[[], str],
    form: SecondaryForm,
) -> list[Run] | None:
    """Some runs as one; None where they are."""
    stretches = list(_stretches(readers, levels, live, form))
    if len(levels) == 1 and all(stretch.stays for stretch in stretches):
        return None
    result: list[Run] = []
    written: list[Run] = []
    try:
        for stretch in stretches:
            if stretch.stays:
                result += [replace(run, segments=segments) for run in stretch.runs]
                continue
            sources = [s for level in stretch.by_level() for s in _sources(readers, level, live)]
            new = write_entries(storage, lambda _: next_path(), merged_entries(sources), segments, form)
            written += new
            result += new
    except BaseException:
        for run in written:
            storage.delete(run.path)
        raise
    return result


@dataclass
class _Stretch:
    """Shards whose keys lie between those of the shards before and after; with the number of the level of each."""

    runs: list[Run]
    levels: list[int]
    stays: bool

    def by_level(self) -> list[Level]:
        pairs = sorted(zip(self.levels, self.runs, strict=True), key=lambda pair: pair[0])
        return [tuple(run for _, run in same) for _, same in groupby(pairs, key=lambda pair: pair[0])]


def _stretches(
    readers: RunReaders, levels: Sequence[Level], live: np.ndarray, form: SecondaryForm
) -> Iterator[_Stretch]:
    """The shards of some levels in key order: what overlaps is together, and so is what lies beside it and is too
    small, or holds too much of what is gone, to stay."""
    shards = []
    for number, level in enumerate(levels):
        for run in level:
            reader = readers.reader(run)
            if reader.num_entries:
                shards.append((*reader.ends(), number, run, _is_stale(reader, live)))
    shards.sort(key=lambda shard: shard[:3])
    clusters: list[_Stretch] = []
    last = b""
    shard_bytes = form.shard_bytes or 0
    is_only = len(levels) == 1
    for first_key, last_key, number, run, is_stale in shards:
        if clusters and first_key <= last:
            clusters[-1].runs.append(run)
            clusters[-1].levels.append(number)
            clusters[-1].stays = False
            last = max(last, last_key)
        else:
            clusters.append(_Stretch([run], [number], not is_stale and (is_only or 2 * run.size_bytes >= shard_bytes)))
            last = last_key
    for stays, same in groupby(clusters, key=lambda cluster: cluster.stays):
        together = list(same)
        if stays:
            yield from together
        else:
            yield _Stretch([r for c in together for r in c.runs], [n for c in together for n in c.levels], False)


def _is_stale(reader: SortedFileReader, live: np.ndarray) -> bool:
    """True where many of a run's files are not live."""
    ranges = np.array(files_of(reader), dtype=np.uint64).reshape(-1, 2)
    files = int((ranges[:, 1] - ranges[:, 0]).sum()) + len(ranges)
    live_files = np.searchsorted(live, ranges[:, 1], side="right") - np.searchsorted(live, ranges[:, 0])
    return POLICY.is_obsolete(reader.size_bytes, files, files - int(live_files.sum()))


def _sources(readers: RunReaders, level: Level, live: np.ndarray | None) -> list[EntrySource]:
    """The entries of shards, as few sources as their keys allow; those of files that are `live`, None for all."""
    chains: list[tuple[bytes, bytes, list[Run]]] = []
    for first_key, last_key, run in sorted(
        ((*readers.reader(run).ends(), run) for run in level if run.entries), key=lambda shard: shard[:2]
    ):
        follows = next((i for i, (_, last, _) in enumerate(chains) if last < first_key), None)
        if follows is None:
            chains.append((first_key, last_key, [run]))
        else:
            chains[follows] = chains[follows][0], last_key, [*chains[follows][2], run]
    return [EntrySource(larger(_read(readers, chain, live)), first) for first, _, chain in chains]


def _read(readers: RunReaders, runs: Iterable[Run], live: np.ndarray | None) -> Iterator[pa.RecordBatch]:
    for run in runs:
        for batch in readers.reader(run).scan(columns=RUN_SCHEMA.names):
            yield batch if live is None else _of_files(batch, live)


def _of_files(batch: pa.RecordBatch, live: np.ndarray) -> pa.RecordBatch:
    ids, _ = places_of(batch.column(0))
    nearest = np.searchsorted(live, ids)
    is_live = live[np.minimum(nearest, len(live) - 1)] == ids if len(live) else np.zeros(len(ids), dtype=bool)
    return batch if is_live.all() else batch.filter(from_numpy(is_live))


def carried_entries(
    storage: Storage,
    results: Sequence[TaskResult],
    ids: Sequence[np.ndarray],
    columns: tuple[str, ...],
    kinds: Sequence[pa.DataType],
) -> tuple[NewEntries | None, list[int]]:
    """(what tasks carry for an index of these columns, None where none carries anything; the added files that it is
    nothing on).

    ids        uint64 file ids, result by result
    columns    paths, as the tasks spoke of them
    kinds      the types that the index encodes; keys of other classes count as none
    """
    classes = tuple(ordered_class(kind) for kind in kinds)
    holes: list[int] = []
    carried: list[tuple[KeyRun, np.ndarray]] = []
    entries = size_bytes = 0
    carries = False
    for result, file_ids in zip(results, ids, strict=True):
        key_run = None if result.index is None else result.index.key_runs.get(columns)
        if key_run is None or key_run.classes != classes:
            holes += file_ids.tolist()
            continue
        carries = True
        holes += [i for i, number in zip(file_ids.tolist(), key_run.numbers, strict=True) if number is None]
        if key_run.path is not None:
            carried.append((key_run, file_ids))
            entries, size_bytes = entries + key_run.entries, size_bytes + key_run.size_bytes
    if not carries:
        return None, holes

    def sources() -> list[EntrySource]:
        return [EntrySource(larger(_bound(storage, run, ids_of_run))) for run, ids_of_run in carried]

    return NewEntries(sources, entries, size_bytes), holes


def task_key_paths(results: Sequence[TaskResult]) -> list[str]:
    """The runs of keys that tasks wrote: of no use once the commit is published, or given up."""
    of_tasks = [result.index.key_runs.values() for result in results if result.index is not None]
    return [run.path for runs in of_tasks for run in runs if run.path is not None]


def _bound(storage: Storage, run: KeyRun, file_ids: np.ndarray) -> Iterator[pa.RecordBatch]:
    """The entries of a task's run with file ids in the place of its numbers: they ascend by their values."""
    assert run.path is not None
    pairs = [(number, i) for number, i in zip(run.numbers, file_ids.tolist(), strict=True) if number is not None]
    numbers, ids = (np.array(part, dtype=np.uint64) for part in zip(*sorted(pairs), strict=True))
    with SortedFileReader(Ranged(storage, run.path, run.size_bytes)) as reader:
        check_written_as(reader, run.path)
        for batch in reader.scan(columns=RUN_SCHEMA.names):
            local, groups = places_of(batch.column(0))
            keys = _placed(batch.column(0), ids[np.searchsorted(numbers, local)], groups)
            yield pa.RecordBatch.from_arrays([keys, *batch.columns[1:]], schema=ENTRY_SCHEMA)


def _placed(keys: pa.BinaryArray, ids: np.ndarray, row_groups: np.ndarray) -> pa.BinaryArray:
    """Keys with other places."""
    partition, sequence = split_file_ids(ids)
    places = PLACE.encode(partition=partition, sequence=sequence, row_group=row_groups)
    return with_ending(without_place(keys), places)


def committed_entries(index: IndexState, kinds: Sequence[pa.DataType], work: CommitWork) -> IndexState:
    """The index, which encodes `kinds`, with the entries that a commit's tasks carry for it. Files of which they carry
    none are holes; with none at all the segment stays uncovered."""
    paths = {number: path for path, number in work.named_at.columns.items()}
    columns = [paths.get(number) for number in index.columns]  # None: it was added since, and no task knew of it
    names = tuple(column for column in columns if column is not None)
    if index.maintain != "commit" or len(names) < len(columns):
        return index
    writing, ids = work.writing, [files.ids for files in work.added]
    new, holes = carried_entries(writing.storage, work.results, ids, names, kinds)
    if new is None:
        return index
    runs = appended_entries(
        writing.storage,
        writing.readers,
        index.runs,
        new,
        work.version,
        lambda shard: writing.path(f"p{index.id}-{shard}"),
        _form(index),
    )
    return replace(index, runs=runs, coverage=index.coverage.with_segment(work.version, holes))


def merged_entry_runs(index: IndexState, work: MergeWork) -> IndexState:
    """The index with fewer runs, and without the entries of files that went, where there are many. A damaged one stays
    as it is."""
    writing = work.writing
    try:
        runs = consolidated_entries(
            writing.storage,
            writing.readers,
            index.runs,
            work.snapshot.numbers(),
            lambda shard: writing.path(f"p{index.id}c-{shard}"),
            _form(index),
        )
    except DAMAGE as error:
        warnings.warn(f"an index with a damaged run is left as it is: {error}", stacklevel=4)
        return index
    return index if runs is None else replace(index, runs=runs)


def _form(index: IndexState) -> SecondaryForm:
    return SecondaryForm(index.options["shard_bytes"])
