"""Sorted runs: one writer and merger for the manifest, statistics and secondary entries.

    write_runs          new entries as one run: one file, or several shards by key range
    RunWriter.append    the runs with the entries of a new version, merged with the last runs if that is cheap
    RunWriter.compact   the runs merged into few, without the entries of removed files if there are many

`run_format.py` decides what is written and which runs are merged, `hfile_like/merge.py` merges them. Shards of one run
are neighbours. A large shard stays unchanged if no other run has keys between its keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby, pairwise

import numpy as np
import pyarrow as pa

from ...base.arrays import combine, from_numpy, index_of, to_numpy
from ...hfile_like import (
    SortedFileReader,
    SortedFileWriter,
    merge_runs,
    prefix_changes,
    prefix_successor,
)
from ..storage import Storage
from ..storage.threads import BUILD_THREADS, prefetched
from . import Run
from .coverage import IdRanges
from .paths import run_path
from .publishing import UnpublishedFiles
from .run_format import MANIFEST_FORMAT, EntryBatch, NewEntries, RunFormat, SortedEntries, SortedRanges, files_of
from .run_lookups import first_of_each
from .runs import DAMAGE, RunReaders, warn_of_damage

MEMORY_ENTRIES = 1 << 17  # up to this many entries are merged in memory, and encoded once
KEY, DELETED = pa.field("key", pa.binary(), nullable=False), pa.field("deleted", pa.bool_(), nullable=False)
_ROWS_AT_ONCE = 1 << 17
_ENTRIES_OF_A_THREAD = 1 << 20  # more entries, in several shards, are merged by several threads
_ENTRY_BYTES_MIN = 16  # about the least bytes of an entry in a file
_RUN_KEY_BYTES = 64  # of the first and last key of a run, as a version stores them

PathOf = Callable[[int], str]  # the path of shard 0, 1 ... of a run
Level = tuple[Run, ...]  # the shards of one run
Keep = Callable[[pa.BinaryArray], np.ndarray]  # from keys to bool [n]: the entries that stay


@dataclass
class RunWriter:
    """Writes the runs of one attempt of a change: `leftovers` has the path of each before it is written.

    purged    of a purge: the paths of runs that contain nothing of removed files; None otherwise
    """

    storage: Storage
    readers: RunReaders
    leftovers: UnpublishedFiles
    transaction: str
    attempt: str
    purged: set[str] | None = None

    def path(self, name: str) -> str:
        """Return the path for a run of that name, which is unique within the attempt."""
        path = run_path(self.transaction, f"{self.attempt}-{name}")
        self.leftovers.add(self.storage, path)
        return path

    def _paths(self, name: str) -> PathOf:
        numbers = count()
        return lambda _: self.path(f"{name}-{next(numbers)}")

    def append(
        self, runs: tuple[Run, ...], new: NewEntries, version: int, name: str, form: RunFormat, *, is_index: bool = True
    ) -> tuple[Run, ...]:
        """Return the runs, oldest first, with the entries of a new version. If that is cheap, these are merged with the
        last runs and are written only once.

        Raise CorruptionError, FormatVersionError or FileMissingError for a damaged run of the manifest. One of an index
        (`is_index`) stays unchanged, because none is required, and only newer runs are merged.
        """
        if not new.num_entries:
            return runs
        levels = levels_of(runs)
        first = form.policy.first_merged(level_sizes(levels), new.num_entries, new.size_bytes)
        for start in range(first, len(levels) + 1):
            older, newer = ([run for level in part for run in level] for part in (levels[:start], levels[start:]))
            try:
                return (*older, *self._with_entries(newer, new, version, name, form, drop_tombstones=start == 0))
            except DAMAGE as error:
                if not is_index or not newer:  # the new entries are damaged or missing: the commit fails
                    raise
                warn_of_damage(error)
        raise AssertionError("the last round merges nothing old")

    def _with_entries(
        self, runs: Sequence[Run], new: NewEntries, version: int, name: str, form: RunFormat, *, drop_tombstones: bool
    ) -> tuple[Run, ...]:
        """Return runs, oldest first, and the entries of a new version as one run."""
        path_of = self._paths(name)
        if not runs:
            return write_runs(self.storage, path_of, new, (version, version), form, self.readers)
        segments = (min(run.segments[0] for run in runs), version)
        total_bytes = level_bytes(runs) + new.size_bytes
        is_small = sum(run.entries for run in runs) + new.num_entries <= MEMORY_ENTRIES
        if isinstance(new, EntryBatch) and is_small and (form.shard_bytes is None or total_bytes <= form.shard_bytes):
            newest = _newest([self.readers.rows(run) for run in runs], new, drop_tombstones=drop_tombstones)
            return write_runs(self.storage, path_of, newest, segments, form, self.readers)
        opened = [*map(self.readers.reader, runs)]
        opened += new.files if isinstance(new, SortedEntries) else [SortedFileReader(new.encoded(form))]
        return _merged(self.storage, opened, path_of, segments, form, None, drop_tombstones=drop_tombstones)

    def append_to_manifest(self, runs: tuple[Run, ...], new: EntryBatch, version: int) -> tuple[Run, ...]:
        """Return the manifest's runs with the entries of a new version. Raises for a damaged run."""
        return self.append(runs, new, version, "m", MANIFEST_FORMAT, is_index=False)

    def compact(
        self,
        runs: tuple[Run, ...],
        name: str,
        form: RunFormat,
        live: np.ndarray | None = None,
        keep: Keep | None = None,
    ) -> tuple[Run, ...] | None:
        """Return the runs, oldest first, merged into one, or into two if the oldest is much larger than the others.
        Return None if nothing changes. With `live` (file ids, uint64, ascending) entries of other files are left out,
        if there are many. Raise CorruptionError, FormatVersionError or FileMissingError for a damaged run.

        A purge always returns runs, and leaves out every entry of another file, however few there are, and the entries
        that it does not `keep`. Runs that have no entry of another file stay.
        """
        path_of = self._paths(name)
        if self.purged is not None:
            result = self._purged_runs(runs, path_of, form, live, keep)
            if keep is not None or (live is not None and form.file_ids is not None):  # else removed entries stay
                self.purged.update(run.path for run in result)
            return result
        result, written = runs, set[str]()
        while levels := levels_of(result):
            before, result = result, ()
            for part in ([levels[0]], levels[1:]) if _keeps_oldest(levels, form) else (levels,):
                drop_tombstones = part[0] is levels[0]
                result += self._merged_levels(part, live, path_of, form, drop_tombstones=drop_tombstones)
            if result == before:
                break
            written |= {run.path for run in result} - {run.path for run in before}
            # If much of the oldest was dropped, it is no longer much larger than the others: they are merged again.
            levels = levels_of(result)
            if len(levels) < 2 or _keeps_oldest(levels, form):
                break
        for path in written - {run.path for run in (*runs, *result)}:
            self.storage.delete(path)
        return None if result == runs else result

    def _purged_runs(
        self, runs: tuple[Run, ...], path_of: PathOf, form: RunFormat, live: np.ndarray | None, keep: Keep | None
    ) -> tuple[Run, ...]:
        opened = [self.readers.reader(run) for run in runs]
        if not opened or (live is not None and not any(files_of(run).count_missing(live) for run in opened)):
            return runs
        segments = (min(run.segments[0] for run in runs), max(run.segments[1] for run in runs))
        return _merged(self.storage, opened, path_of, segments, form, live, keep, drop_tombstones=True)

    def _merged_levels(
        self,
        levels: Sequence[Level],
        live: np.ndarray | None,
        path_of: PathOf,
        form: RunFormat,
        *,
        drop_tombstones: bool,
    ) -> tuple[Run, ...]:
        """Return some runs merged into one; the same shards if there is nothing to do."""
        groups = list(_overlap_groups(self.readers, levels, live, form))
        if len(levels) == 1 and all(group.stays for group in groups):
            return levels[0]
        segments = (min(level[0].segments[0] for level in levels), max(level[0].segments[1] for level in levels))
        result: list[Run] = []
        written: list[Run] = []
        with removing_on_error(self.storage, written):
            for group in groups:
                if group.stays:
                    result += [replace(run, segments=segments) for run in group.runs]
                    continue
                opened = [self.readers.reader(run) for run in group.runs]
                new = _merged(self.storage, opened, path_of, segments, form, live, drop_tombstones=drop_tombstones)
                written += new
                result += new
        return tuple(result)


# -- writing ----------------------------------------------------------------------------------------------------------


def write_runs(
    storage: Storage,
    path_of: PathOf,
    new: NewEntries | SortedRanges,
    segments: tuple[int, int],
    form: RunFormat,
    readers: RunReaders | None = None,
) -> tuple[Run, ...]:
    """Write entries as one run of one shard or more. Each shard is durable and complete on return; on an exception
    none remains. `readers`, if given, keep the entries of a small run."""
    if isinstance(new, SortedEntries):
        return _merged(storage, new.files, path_of, segments, form, None, drop_tombstones=False)
    at_once = _ROWS_AT_ONCE
    if form.shard_bytes is not None:  # a shard is cut between pieces
        at_once = min(at_once, form.shard_bytes // _ENTRY_BYTES_MIN + 1)
    if isinstance(new, SortedRanges):
        return _write_ranges(storage, path_of, new, segments, form, at_once)
    keys, values, deleted = new.sorted()
    if not len(keys):
        return ()
    if len(keys) <= _ROWS_AT_ONCE:
        values = values.combine_chunks()  # so that one call writes few blocks, not one per chunk
    files = form.files_of_keys(keys)
    cuts = [*prefix_changes(keys, form.partition_prefix_bytes), len(keys)] if len(keys) > at_once else []
    runs: list[Run] = []
    start = 0
    with removing_on_error(storage, runs):
        while start < len(keys):
            path, first = path_of(len(runs)), start
            options = form.options(path, len(keys), files)
            with storage.create(path) as sink, SortedFileWriter(sink, schema=values.schema, **options) as writer:
                while start < len(keys) and (
                    start == first or form.shard_bytes is None or writer.size_bytes < form.shard_bytes
                ):
                    stop = min(start + at_once, len(keys))
                    if cuts and form.shard_bytes is not None and writer.size_bytes >= form.shard_bytes // 2:
                        if start > first and start in cuts:
                            break
                        stop = min(stop, *(cut for cut in cuts if cut > start))
                    writer.write(keys[start:stop], values.slice(start, stop - start), deleted[start:stop], copy=False)
                    start = stop
                writer.close()
                ends = keys[first].as_py(), keys[start - 1].as_py()
                runs.append(Run(path, writer.size_bytes, writer.num_entries, segments, *bounded_ends(*ends)))
    if len(runs) == 1 and readers is not None:
        readers.keep_rows(runs[0], values.add_column(0, KEY, keys).append_column(DELETED, from_numpy(deleted)))
    return tuple(runs)


def _write_ranges(
    storage: Storage, path_of: PathOf, new: SortedRanges, segments: tuple[int, int], form: RunFormat, at_once: int
) -> tuple[Run, ...]:
    numbers, written, shard_bytes = count(), list[Run](), form.shard_bytes or 1 << 62

    def write(entries_of: Callable[[int], Iterator[EntryBatch]]) -> list[Run]:
        runs, batches = list[Run](), entries_of(at_once)
        batch = next(batches, None)
        while batch is not None:
            path, first = path_of(next(numbers)), batch.keys[0].as_py()
            options = form.options(path, files=new.files)
            with storage.create(path) as sink, SortedFileWriter(sink, schema=new.schema, **options) as writer:
                while batch is not None and (not writer.num_entries or writer.size_bytes < shard_bytes):
                    writer.write(batch.keys, batch.values, copy=False)
                    last = batch.keys[-1].as_py()
                    batch = next(batches, None)
                writer.close()
                runs.append(Run(path, writer.size_bytes, writer.num_entries, segments, *bounded_ends(first, last)))
                written.append(runs[-1])
        return runs

    with removing_on_error(storage, written):
        done = list(prefetched(write, new.ranges, BUILD_THREADS, "skipstone-sort"))
    return tuple(run for runs in done for run in runs)


@contextlib.contextmanager
def removing_on_error(storage: Storage, runs: Sequence[Run]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for run in runs:
            storage.delete(run.path)
        raise


def bounded_ends(first: bytes, last: bytes) -> tuple[str, str]:
    """Return hex of two keys of bounded length between which all keys are, both inclusive."""
    if len(last) > _RUN_KEY_BYTES:
        last = prefix_successor(last[:_RUN_KEY_BYTES]) or last
    return first[:_RUN_KEY_BYTES].hex(), last.hex()


# -- merging ----------------------------------------------------------------------------------------------------------


def _newest(older: Sequence[pa.Table], new: EntryBatch, *, drop_tombstones: bool) -> EntryBatch:
    """Return the newest entry of each key, from runs, oldest first, and newer entries."""
    layers = [new.values.append_column(DELETED, from_numpy(new.deleted)).add_column(0, KEY, new.keys)]
    layers += [each.select(layers[0].column_names) for each in reversed(older)]
    together = pa.concat_tables(layers).combine_chunks()
    first = first_of_each(together.column("key"))
    if drop_tombstones:
        first = first[~to_numpy(together.column("deleted"))[first]]
    taken = together.take(from_numpy(first))
    values, deleted = taken.select(new.values.column_names), to_numpy(taken.column(DELETED.name))
    return EntryBatch(combine(taken.column(KEY.name)), values, deleted)


def _keeps_oldest(levels: Sequence[Level], form: RunFormat) -> bool:
    return len(levels) > 1 and form.policy.keeps_oldest([level_bytes(level) for level in levels])


@dataclass
class _OverlapGroup:
    """Shards, oldest first, whose keys are between those of the groups before and after."""

    runs: list[Run]
    stays: bool


def _overlap_groups(
    readers: RunReaders, levels: Sequence[Level], live: np.ndarray | None, form: RunFormat
) -> Iterator[_OverlapGroup]:
    """Yield the shards of some levels in key order. Shards that overlap are one group. Neighbours that are too small,
    or have too many entries of removed files, to stay unchanged, are one group as well."""
    shards = []
    for age, run in enumerate(run for level in levels for run in level):
        reader = readers.reader(run)
        if reader.num_entries:
            is_large = len(levels) == 1 or 2 * run.size_bytes >= (form.shard_bytes or 0)
            shards.append((*reader.ends(), age, run, is_large and not _is_stale(reader, live, form)))
    shards.sort(key=lambda shard: shard[:3])
    groups: list[tuple[bool, list[tuple[int, Run]]]] = []  # whether it stays; (age, shard)
    end = b""
    for first_key, last_key, age, run, stays in shards:
        if groups and first_key <= end:
            groups[-1] = False, [*groups[-1][1], (age, run)]
        else:
            groups.append((stays, [(age, run)]))
        end = max(end, last_key)
    for stays, same in groupby(groups, key=lambda group: group[0]):
        members = [pairs for _, pairs in same]
        for together in members if stays else [[pair for pairs in members for pair in pairs]]:
            yield _OverlapGroup([run for _, run in sorted(together, key=lambda pair: pair[0])], stays)


def _is_stale(reader: SortedFileReader, live: np.ndarray | None, form: RunFormat) -> bool:
    """Return whether many of a run's files are not live."""
    if live is None:
        return False
    ids = files_of(reader)
    return form.policy.is_obsolete(reader.size_bytes, ids.count, ids.count_missing(live))


def _merged(
    storage: Storage,
    opened: Sequence[SortedFileReader],
    path_of: PathOf,
    segments: tuple[int, int],
    form: RunFormat,
    live: np.ndarray | None,
    keep: Keep | None = None,
    *,
    drop_tombstones: bool,
) -> tuple[Run, ...]:
    """Return runs, oldest first, merged into one of one shard or more. Tombstones may be dropped only if the oldest run
    of all takes part (rule 32)."""
    opened = [run for run in opened if run.num_entries]
    if not opened:
        return ()
    files = None
    if form.file_ids is not None:
        files = IdRanges.union(files_of(run) for run in opened)
        if live is not None and files.count_missing(live):
            files, keep = IdRanges.of(live[files.contains(live)]), _keeper(form.file_ids, live)
    written: list[Run] = []

    def merge(shard: tuple[str, bytes | None, bytes | None]) -> Run:
        path, start, stop = shard
        options = form.options(path, files=files)
        with storage.create(path) as sink:
            done = merge_runs(opened, sink, drop_tombstones, start, stop, keep, **options)
        ends = bounded_ends(done.first_key, done.last_key)  # removed entries may have had keys outside of these
        run = Run(path, done.size_bytes, done.num_entries, segments, *ends)
        written.append(run)
        return run

    cuts = pairwise([None, *_cuts(opened, form.shard_bytes), None])
    shards = [(path_of(number), *cut) for number, cut in enumerate(cuts)]
    is_much = len(shards) > 1 and sum(run.num_entries for run in opened) > _ENTRIES_OF_A_THREAD
    with removing_on_error(storage, written):
        runs = list(prefetched(merge, shards, BUILD_THREADS, "skipstone-merge") if is_much else map(merge, shards))
        for run in runs:
            if not run.entries:
                storage.delete(run.path)
    return tuple(run for run in runs if run.entries)


def _keeper(file_ids: Callable[[pa.BinaryArray], np.ndarray], live: np.ndarray) -> Keep:
    return lambda keys: index_of(live, file_ids(keys)) >= 0


def _cuts(runs: Sequence[SortedFileReader], shard_bytes: int | None) -> list[bytes]:
    """Return keys between which the runs have about `shard_bytes`; none if they have not much more than that."""
    if shard_bytes is None:
        return []
    blocks = sorted((block.first_key, block.length) for run in runs for block in run.blocks())
    if sum(length for _, length in blocks) < 2 * shard_bytes:
        return []
    cuts: list[bytes] = []
    size_bytes = 0
    for key, length in blocks:
        if size_bytes >= shard_bytes and (not cuts or key > cuts[-1]):
            cuts.append(key)
            size_bytes = 0
        size_bytes += length
    return cuts


# -- what runs consist of ---------------------------------------------------------------------------------------------


def levels_of(runs: Sequence[Run]) -> list[Level]:
    """Return the runs, each with its shards."""
    return [tuple(shards) for _, shards in groupby(runs, key=lambda run: run.segments)]


def level_sizes(levels: Sequence[Level]) -> list[tuple[int, int]]:
    """Return (entries, bytes) of each level."""
    return [(sum(run.entries for run in level), level_bytes(level)) for level in levels]


def level_bytes(shards: Sequence[Run]) -> int:
    return sum(run.size_bytes for run in shards)
