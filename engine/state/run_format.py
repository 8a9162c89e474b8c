"""The format of a kind of runs, entries that are to be written as a run, and when runs are merged.

A new run is merged with every run before it that has less than `RATIO` times the entries gathered so far. So each run
that stays is at least that much larger than the next, their number grows with the logarithm of the entries, and an
entry is rewritten a logarithmic number of times. What one commit may rewrite is bounded; larger runs wait for
`optimize`, which rewrites the oldest run only if the others have grown to a share of it, or if that share of it is
obsolete. One policy is for the manifest and for every kind of index (docs/decisions/commits.md).

If a format has `file_ids`, the keys of its entries contain file ids, and the meta `files` of each run lists the ids of
its entries as ranges: pairs of the first and the last id, u64 little-endian. It may list more ids than there are.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, to_numpy
from ...errors import CorruptionError
from ...hfile_like import SortedFileReader, SortedFileWriter, WriterOptions
from . import manifest
from .coverage import IdRanges
from .runs import written_as

RATIO = 4
LEVELS_MAX = 12
OLDEST_SHARE = 8
SHARD_BYTES = 64 << 20
FILES_META = "files"
ENTRY_BYTES = 32  # about the bytes of an entry in a run that is not written yet
_TEMPLATE_ROWS_MIN = 512  # in fewer, looking for templates of names takes as long as half of the writing


@dataclass(frozen=True)
class MergePolicy:
    """The bounds of one kind of runs.

    commit_bytes   a commit may rewrite so many bytes
    commit_share   or so many times the bytes that it adds, if that is more
    levels_max     the commit that would leave more runs merges the newest, whatever it costs; None for no such bound
    small_bytes    a run of at most so many bytes is rewritten whenever that leaves fewer runs or entries
    """

    commit_bytes: int
    commit_share: int = 4
    levels_max: int | None = LEVELS_MAX
    small_bytes: int = 0

    def first_merged(self, levels: Sequence[tuple[int, int]], entries: int, size_bytes: int) -> int:
        """Return the first of the levels, (entries, bytes) each and oldest first, that a new run of so many entries and
        bytes is merged with; the number of levels if there is none."""
        first, allowed = len(levels), max(self.commit_bytes, self.commit_share * size_bytes)
        rewritten = size_bytes
        while first > 0:
            level_entries, level_bytes = levels[first - 1]
            is_cheap = level_entries < RATIO * entries and rewritten + level_bytes <= allowed
            if not is_cheap and (self.levels_max is None or first < self.levels_max):
                break
            first -= 1
            entries, rewritten = entries + level_entries, rewritten + level_bytes
        return first

    def keeps_oldest(self, sizes_bytes: Sequence[int]) -> bool:
        """Return whether the oldest of runs to be merged, oldest first, is too large to be rewritten for the others."""
        return sizes_bytes[0] > max(self.small_bytes, OLDEST_SHARE * sum(sizes_bytes[1:]))

    def is_obsolete(self, size_bytes: int, count: int, removed: int) -> bool:
        """Return whether a run of `count` files, of which `removed` are not live, is worth rewriting just for that."""
        return removed > 0 and (size_bytes <= self.small_bytes or OLDEST_SHARE * removed >= count)


POLICY = MergePolicy(commit_bytes=1 << 20)


@dataclass(frozen=True)
class RunFormat:
    """How the runs of one kind are written.

    block_bytes        the size of a block before encoding
    summaries          the footer contains the range of these columns in each block
    shard_bytes        a larger run is cut into shards of about this size; None: never
    partition_prefix_bytes   a block, and a shard that is half full, ends if these first bytes of the key change
    templates          look for strings of one form, such as file names
    file_ids           from keys to the file id of each (uint64); None: entries are not of files
    policy             when runs are merged
    """

    block_bytes: int
    summaries: tuple[str, ...] = ()
    shard_bytes: int | None = SHARD_BYTES
    partition_prefix_bytes: int = 0
    templates: bool = True
    file_ids: Callable[[pa.BinaryArray], np.ndarray] | None = None
    policy: MergePolicy = POLICY

    def options(
        self, path: str | None = None, entries: int | None = None, files: IdRanges | None = None
    ) -> WriterOptions:
        """Return the options of the writer of the run at `path`, None for a run in memory. `entries`: how many, if
        known; `files`: the ids for its meta. No option is chosen by a sample: with these block sizes a sample chose the
        same for runs of every kind, and took 4% of the time of writing."""
        metas = {} if path is None else written_as(path)
        if files is not None:
            metas[FILES_META] = np.stack([files.first, files.last], axis=1).astype("<u8").tobytes()
        return {
            "block_size": self.block_bytes,
            "compression": "zstd",
            "summaries": self.summaries,
            "partition_prefix_bytes": self.partition_prefix_bytes,
            "templates": self.templates and (entries is None or entries >= _TEMPLATE_ROWS_MIN),
            "metas": metas,
        }

    def files_of_keys(self, keys: pa.BinaryArray) -> IdRanges | None:
        """Return the files of entries, for the meta of their run."""
        if self.file_ids is None:
            return None
        return IdRanges.of(np.sort(to_numpy(pc.unique(from_numpy(self.file_ids(keys))))))


MANIFEST_FORMAT = RunFormat(
    manifest.BLOCK_BYTES, manifest.SUMMARIES, partition_prefix_bytes=manifest.PARTITION_PREFIX_BYTES
)


class EntryBatch(NamedTuple):
    """Entries in memory, in any order: keys, values, and bool [n]: the entry is a tombstone."""

    keys: pa.Array
    values: pa.Table
    deleted: np.ndarray

    @classmethod
    def concat(cls, parts: Sequence[EntryBatch], schema: pa.Schema) -> EntryBatch:
        """Return the entries of several batches, with every field of a schema; null if a batch lacks it."""
        nothing = cls(pa.nulls(0, pa.binary()), pa.table({}), np.zeros(0, bool))
        keys, values, deleted = zip(*([part for part in parts if part.num_entries] or [nothing]), strict=True)
        rows = pa.concat_tables([pa.Table.from_batches([], schema), *values], promote_options="default")
        return cls(pa.concat_arrays(keys), rows, np.concatenate(deleted))

    def sorted(self) -> EntryBatch:
        keys, values, deleted = self
        if len(keys) < 2 or pc.all(pc.less(keys[:-1], keys[1:])).as_py():
            return self
        order = pc.array_sort_indices(keys)
        return EntryBatch(keys.take(order), values.take(order), deleted[to_numpy(order)])

    @property
    def num_entries(self) -> int:
        return len(self.keys)

    @property
    def size_bytes(self) -> int:
        """About the bytes of the entries in a run."""
        return self.num_entries * ENTRY_BYTES

    def encoded(self, form: RunFormat) -> bytes:
        """Return the entries as the bytes of one run without shards."""
        keys, values, deleted = self.sorted()
        sink = io.BytesIO()
        options = form.options(entries=len(keys), files=form.files_of_keys(keys))
        with SortedFileWriter(sink, schema=values.schema, **options) as writer:
            writer.write(keys, values, from_numpy(deleted))
        return sink.getvalue()


@dataclass(frozen=True)
class SortedEntries:
    """More entries than should be in memory: sorted files, oldest first, of the format's schema and metas. The caller
    removes the files."""

    files: Sequence[SortedFileReader]

    @property
    def num_entries(self) -> int:
        return sum(file.num_entries for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class SortedRanges:
    """Entries that are sorted when they are written, in threads: functions that return the entries of ranges of keys,
    ascending, in batches of at most so many. `files`, `schema`: of all of them."""

    ranges: Sequence[Callable[[int], Iterator[EntryBatch]]]
    files: IdRanges
    schema: pa.Schema


NewEntries = EntryBatch | SortedEntries


def files_of(reader: SortedFileReader) -> IdRanges:
    """Return the ids in the meta of a run whose format has `file_ids`. Raise CorruptionError."""
    data = reader.meta(FILES_META) if FILES_META in reader.metas() else b"?"
    if len(data) % 16 == 0:
        pairs = np.frombuffer(data, dtype="<u8").astype(np.uint64).reshape(-1, 2)
        if (pairs[:, 0] <= pairs[:, 1]).all() and (pairs[1:, 0] > pairs[:-1, 1]).all():
            return IdRanges(pairs[:, 0].copy(), pairs[:, 1].copy())
    raise CorruptionError("does not list the files of its entries", path=reader.name, check="files")
