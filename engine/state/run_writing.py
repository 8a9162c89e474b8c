"""Writing runs, and merging them where it pays.

Rows of ascending keys go in, immutable sorted-block files come out; large ones as shards by key range.

`merge_policy.py` decides which runs are merged. Shards of one run are neighbours and count as one; what is merged is
cut into shards anew.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, from_numpy, to_numpy
from ...hfile_like import SortedFileReader, SortedFileWriter, WriterOptions, merge_runs, prefix_changes
from ..storage import Storage
from . import Run, manifest
from .leftovers import Leftovers
from .merge_policy import MergePolicy
from .paths import run_path
from .run_lookups import first_of_each
from .runs import DAMAGE, RunReaders, written_as

SHARD_BYTES = 64 << 20
Rows = tuple[pa.Array, pa.Table, np.ndarray]  # keys, values, tombstones: in any order
KEY, DELETED = pa.field("key", pa.binary(), nullable=False), pa.field("deleted", pa.bool_(), nullable=False)
_ROWS_AT_ONCE = 1 << 17
_TEMPLATE_ROWS_MIN = 64  # in fewer, to look for templates of names takes as long as half of all else that is written


@dataclass(frozen=True)
class RunFormat:
    """How runs of one kind are written.

    block_bytes        of a block, before encoding
    summaries          columns whose range in each block is in the footer
    shard_bytes        a run that grows beyond is cut in shards of about this size
    partition_prefix_bytes   a block, and a shard that is half full, ends where so many first bytes of the key change
    """

    block_bytes: int
    summaries: tuple[str, ...] = ()
    shard_bytes: int = SHARD_BYTES
    partition_prefix_bytes: int = 0

    def options(self, path: str | None = None, entries: int | None = None) -> WriterOptions:
        """For the writer of the run at `path`, None for one in memory; of so many entries, where that is known. Nothing
        is left to choose by a sample: with these block sizes it chose this for runs of every kind, and took 4% of the
        time of writing."""
        return {
            "block_size": self.block_bytes,
            "compression": "zstd",
            "summaries": self.summaries,
            "partition_prefix_bytes": self.partition_prefix_bytes,
            "templates": entries is None or entries >= _TEMPLATE_ROWS_MIN,
            "metas": {} if path is None else written_as(path),
        }


MANIFEST_FORM = RunFormat(
    manifest.BLOCK_BYTES,
    manifest.SUMMARIES,
    partition_prefix_bytes=manifest.PARTITION_PREFIX_BYTES,
)


@dataclass
class RunWriting:
    """Writes the runs of one attempt of a change: the path of each is in `leftovers` before it is written."""

    storage: Storage
    readers: RunReaders
    leftovers: Leftovers
    transaction: str
    attempt: str

    def append_to_manifest(self, runs: tuple[Run, ...], rows: Rows, version: int) -> tuple[Run, ...]:
        """The manifest's runs with the rows of a new version."""
        return self.append(runs, rows, version, "m", MANIFEST_FORM)

    def consolidate_manifest(self, runs: tuple[Run, ...]) -> tuple[Run, ...] | None:
        """The manifest's runs merged; None where that does not pay."""
        return self.consolidate(runs, "mc", MANIFEST_FORM)

    def append(
        self,
        runs: tuple[Run, ...],
        rows: Rows,
        version: int,
        name: str,
        form: RunFormat,
        *,
        leave_damaged: bool = False,
    ) -> tuple[Run, ...]:
        """See `appended`. `name`: of the files, unique within the attempt."""
        paths = self.paths(name)
        return appended(self.storage, self.readers, runs, rows, version, paths, form, leave_damaged=leave_damaged)

    def consolidate(self, runs: tuple[Run, ...], name: str, form: RunFormat) -> tuple[Run, ...] | None:
        """See `consolidated`."""
        return consolidated(self.storage, self.readers, runs, self.paths(name), form)

    def path(self, name: str) -> str:
        """The path for a run of that name."""
        path = run_path(self.transaction, f"{self.attempt}-{name}")
        self.leftovers.add(self.storage, path)
        return path

    def paths(self, name: str) -> Callable[[int], str]:
        """The paths for the shards of a run."""
        return lambda shard: self.path(f"{name}-{shard}")


def joined_rows(parts: Sequence[Rows], schema: pa.Schema) -> Rows:
    """The rows of several parts, in one: with every field of a schema, null where a part has it not."""
    parts = [part for part in parts if len(part[0])] or [(pa.nulls(0, pa.binary()), pa.table({}), np.zeros(0, bool))]
    keys, values, deleted = zip(*parts, strict=True)
    rows = pa.concat_tables([schema.empty_table(), *values], promote_options="default")
    return pa.concat_arrays(keys), rows, np.concatenate(deleted)


def write_runs(
    storage: Storage,
    path_of: Callable[[int], str],
    rows: Rows,
    segments: tuple[int, int],
    *,
    form: RunFormat,
    readers: RunReaders | None = None,
) -> tuple[Run, ...]:
    """Writes rows as one run or more: shards, at the paths that `path_of(0)`, `path_of(1)` ... give. Each is durable
    and whole on return; on an exception the one being written is absent. `readers`, if given, keep those of a small
    run."""
    keys, values, deleted = _sorted(rows)
    if not len(keys):
        return ()
    if len(keys) <= _ROWS_AT_ONCE:
        values = values.combine_chunks()  # what is written in one go is one block or few, not one for each chunk
    runs: list[Run] = []
    start = 0
    cuts: list[int] = []
    if len(keys) > _ROWS_AT_ONCE:
        cuts = [*prefix_changes(keys, form.partition_prefix_bytes), len(keys)]
    while start < len(keys):
        path = path_of(len(runs))
        first = start
        with (
            storage.create(path) as sink,
            SortedFileWriter(sink, schema=values.schema, **form.options(path, len(keys))) as writer,
        ):
            while start < len(keys) and (start == first or writer.size_bytes < form.shard_bytes):
                stop = min(start + _ROWS_AT_ONCE, len(keys))
                if cuts and writer.size_bytes >= form.shard_bytes // 2:
                    if start > first and start in cuts:
                        break
                    stop = min(stop, *(cut for cut in cuts if cut > start))
                writer.write(keys[start:stop], values.slice(start, stop - start), deleted[start:stop], copy=False)
                start = stop
            writer.close()
            ends = keys[first].as_py().hex(), keys[start - 1].as_py().hex()
            runs.append(Run(path, writer.size_bytes, writer.num_entries, segments, *ends))
    if len(runs) == 1 and readers is not None:
        readers.keep_rows(runs[0], values.add_column(0, KEY, keys).append_column(DELETED, from_numpy(deleted)))
    return tuple(runs)


def encoded_run(rows: Rows, form: RunFormat) -> bytes:
    """Rows as the bytes of one run, of no shards: to be merged with others."""
    keys, values, deleted = _sorted(rows)
    sink = io.BytesIO()
    with SortedFileWriter(sink, schema=values.schema, **form.options()) as writer:
        writer.write(keys, values, from_numpy(deleted))
    return sink.getvalue()


def _sorted(rows: Rows) -> Rows:
    keys, values, deleted = rows
    if len(keys) < 2 or pc.all(pc.less(keys[:-1], keys[1:])).as_py():
        return rows
    order = pc.array_sort_indices(keys)
    return keys.take(order), values.take(order), deleted[to_numpy(order)]


POLICY = MergePolicy(commit_bytes=1 << 20)
MEMORY_ENTRIES = 1 << 17  # up to so many entries are merged in memory, and encoded once
ENTRY_BYTES = 32  # about what an entry takes, of a run that is not written yet

Level = tuple[Run, ...]  # the shards of one run


def appended(
    storage: Storage,
    readers: RunReaders,
    runs: tuple[Run, ...],
    rows: Rows,
    segment: int,
    path_of: Callable[[int], str],
    form: RunFormat,
    *,
    leave_damaged: bool = False,
) -> tuple[Run, ...]:
    """The runs with the rows of a new segment, merged where it pays: what is merged is written once.

    Raises CorruptionError, FormatVersionError or FileMissingError for a damaged run; with `leave_damaged` it stays as
    it is, and only what is newer is merged.
    """
    keys, _, _ = rows
    if not len(keys):
        return runs
    levels = levels_of(runs)
    if not levels:
        return write_runs(storage, path_of, rows, (segment, segment), form=form)
    for start in range(POLICY.first_merged(level_sizes(levels), len(keys), len(keys) * ENTRY_BYTES), len(levels)):
        parts = [run for level in levels[start:] for run in level]
        segments = (min(run.segments[0] for run in parts), segment)
        try:
            is_small = sum(run.entries for run in parts) + len(keys) <= MEMORY_ENTRIES
            if is_small and level_bytes(tuple(parts)) + len(keys) * ENTRY_BYTES <= form.shard_bytes:
                layers = [readers.rows(run) for run in parts]
                together = _laid_over(layers, rows, drop_tombstones=start == 0)
                merged = write_runs(storage, path_of, together, segments, form=form, readers=readers)
            else:
                opened = [*map(readers.reader, parts), SortedFileReader(encoded_run(rows, form))]
                merged = merged_runs(storage, opened, path_of, segments, form, drop_tombstones=start == 0)
        except DAMAGE as error:
            if not leave_damaged:
                raise
            warnings.warn(f"an index run is damaged and left out, so none is merged with it: {error}", stacklevel=2)
            continue
        return (*(run for level in levels[:start] for run in level), *merged)
    return (*runs, *write_runs(storage, path_of, rows, (segment, segment), form=form, readers=readers))


def _laid_over(older: list[pa.Table], rows: Rows, *, drop_tombstones: bool) -> Rows:
    """The entries of runs, oldest first, and of rows that are newer: of a key, the newest."""
    keys, values, deleted = rows
    layers = [values.append_column(DELETED, from_numpy(deleted)).add_column(0, KEY, keys)]
    layers += [each.select(layers[0].column_names) for each in reversed(older)]
    together = pa.concat_tables(layers).combine_chunks()
    first = first_of_each(together.column("key"))
    if drop_tombstones:
        first = first[~to_numpy(together.column("deleted"))[first]]
    which, columns = from_numpy(first), [combine(column) for column in together.columns]
    taken = [pa.nulls(len(which), c.type) if c.null_count == len(c) else c.take(which) for c in columns]
    return taken[0], pa.Table.from_arrays(taken[1:-1], schema=values.schema), to_numpy(taken[-1])


def levels_of(runs: tuple[Run, ...]) -> list[Level]:
    """The runs, each with its shards."""
    return [tuple(shards) for _, shards in groupby(runs, key=lambda run: run.segments)]


def level_sizes(levels: Sequence[Level]) -> list[tuple[int, int]]:
    """(entries, bytes) of each."""
    return [(sum(run.entries for run in level), level_bytes(level)) for level in levels]


def consolidated(
    storage: Storage, readers: RunReaders, runs: tuple[Run, ...], path_of: Callable[[int], str], form: RunFormat
) -> tuple[Run, ...] | None:
    """The runs merged into one, or, where the oldest is much larger than the others, into that and one more; None where
    that is so already. A run is of one shard or more."""
    levels = levels_of(runs)
    if len(levels) < 2:
        return None
    start = int(POLICY.keeps_oldest([level_bytes(level) for level in levels]))
    if len(levels) - start < 2:
        return None
    parts = [run for level in levels[start:] for run in level]
    segments = (min(run.segments[0] for run in parts), max(run.segments[1] for run in parts))
    opened = [readers.reader(run) for run in parts]
    merged = merged_runs(storage, opened, path_of, segments, form, drop_tombstones=start == 0)
    return (*(run for level in levels[:start] for run in level), *merged)


def merged_runs(
    storage: Storage,
    opened: list[SortedFileReader],
    path_of: Callable[[int], str],
    segments: tuple[int, int],
    form: RunFormat,
    *,
    drop_tombstones: bool,
) -> tuple[Run, ...]:
    """Runs, oldest first, merged into one of one shard or more. Tombstones have done their work only where nothing
    older is left for them to hide."""
    cuts = _cuts(opened, form.shard_bytes)
    ends = [run.ends() for run in opened if run.num_entries]
    first_key, last_key = min(first for first, _ in ends).hex(), max(last for _, last in ends).hex()
    merged: list[Run] = []
    try:
        for start, stop in pairwise([None, *cuts, None]):
            path = path_of(len(merged))
            with storage.create(path) as sink:
                summary = merge_runs(
                    opened,
                    sink,
                    drop_tombstones=drop_tombstones,
                    start=start,
                    stop=stop,
                    **form.options(path),
                )
            if summary.num_entries:
                first, last = first_key if start is None else start.hex(), last_key if stop is None else stop.hex()
                merged.append(Run(path, summary.size_bytes, summary.num_entries, segments, first, last))
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


def level_bytes(shards: Level) -> int:
    return sum(run.size_bytes for run in shards)
