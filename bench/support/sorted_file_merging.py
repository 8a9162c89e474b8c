"""Merges of a column's file with 50,000 entries over it: 20,000 of new keys, 20,000 of keys that are there, and 10,000
tombstones. Spread over all of the file, or over 11 partitions, as a commit's are.

What was asked is a time beside that of writing the blocks that change, so those are written again on their own: the
blocks of the merged file that are not, entry for entry, blocks of the old one.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from skipstone.hfile_like import PathSource, SortedFileReader, SortedFileWriter, merge_runs

from bench.support.harness import Answer
from bench.support.sorted_file_data import Column
from bench.support.sorted_file_ours import FILE, Counted

ENTRIES = 50_000
CLUSTERS = 11
SPREAD, CLUSTERED = "merge with 50,000, spread", "merge with 50,000, clustered"


@dataclass
class Merge:
    """A run over a column's file.

    run      the newer file
    delta    its entries: `key`, the value columns, `deleted`
    changed  of the merged file, the entries of the blocks that are not the old file's
    """

    column: Column
    old: Path
    run: Path
    merged: Path
    delta: pa.Table
    changed: pa.Table
    changed_blocks: int
    blocks: int

    def ours(self) -> Answer:
        """How many entries come out, and what was asked of the two files."""
        runs = [Counted(PathSource(path)) for path in (self.old, self.run)]
        try:
            count = merge_runs(runs, self.merged, drop_tombstones=True).num_entries
        finally:
            for run in runs:
                run.close()
        return Answer(count, sum(run.requests for run in runs), sum(run.bytes for run in runs))

    def write_changed(self) -> None:
        keys, values = self.changed.column("key"), self.changed.drop_columns(["key"])
        with SortedFileWriter(self.merged.with_suffix(".changed"), schema=values.schema, use="both") as writer:
            writer.write(keys, values)

    def copy(self) -> None:
        self.merged.with_suffix(".copy").write_bytes(self.old.read_bytes())

    def by_arrow(self) -> int:
        return self.expected().num_rows

    def expected(self) -> pa.Table:
        """The entries that must come out: in memory, concatenated and sorted."""
        old = self.column.values.add_column(0, "key", self.column.keys)
        stays = pc.invert(pc.is_in(old.column("key"), value_set=self.delta.column("key")))
        live = self.delta.filter(pc.invert(self.delta.column("deleted"))).drop_columns(["deleted"])
        both = pa.concat_tables([old.filter(stays), live])
        return both.take(pc.sort_indices(both.column("key")))


def prepare(column: Column, folder: Path, work: Path, task: str, entries: int) -> Merge:
    """A merge of so many entries onto the file in `folder`, tried once; `task` is SPREAD or CLUSTERED. Raises
    AssertionError where it comes out wrong."""
    is_clustered = task == CLUSTERED
    random = np.random.default_rng([6, is_clustered])
    delta = _delta(column, _places(column, entries, random, is_clustered), random)
    name = f"{column.name.replace(' ', '-')}-{'clustered' if is_clustered else 'spread'}"
    run, merged = work / f"{name}.run", work / f"{name}.merged"
    values = delta.drop_columns(["key", "deleted"])
    with SortedFileWriter(run, schema=values.schema) as writer:
        writer.write(delta.column("key"), values, pc.fill_null(delta.column("deleted"), False))
    merge = Merge(column, folder / FILE, run, merged, delta, delta, 0, 0)
    merge.ours()
    with SortedFileReader(merged) as reader:
        merged_entries = reader.scan_table()
        assert merged_entries.equals(merge.expected().cast(merged_entries.schema)), "a merge came out wrong"
        merge.changed, merge.changed_blocks = _changed(merge.old, reader, delta)
        merge.blocks = reader.num_blocks
    return merge


def _places(column: Column, count: int, random: np.random.Generator, is_clustered: bool) -> np.ndarray:
    """Positions in the column, distinct and ascending."""
    if not is_clustered:
        return np.sort(random.choice(len(column), min(count, len(column)), replace=False))
    clusters = min(CLUSTERS, len(column.partitions))
    which = np.linspace(0, len(column.partitions) - 1, clusters).astype(np.int64)
    near = [np.arange(column.starts[i], column.starts[i + 1]) for i in which]
    # Partitions are small beside so many entries: those that follow take the rest.
    wanted = count // clusters
    parts = [np.arange(part[0], min(len(column), part[0] + max(len(part), wanted))) for part in near]
    return np.unique(np.concatenate([np.sort(random.permutation(part)[:wanted]) for part in parts]))


def _delta(column: Column, places: np.ndarray, random: np.random.Generator) -> pa.Table:
    """Of the positions two in five give a new key, two a new value, one a tombstone."""
    kinds = random.permutation(np.arange(len(places)) % 5)
    keys = column.keys.take(pa.array(places)).to_pylist()
    offset = column.prefix_bytes + 4
    digits = random.integers(0, 1 << 16, len(places)).tolist()
    for i in np.flatnonzero(kinds < 2).tolist():
        key = keys[i]
        keys[i] = (
            _renewed_name(key, offset, digits[i])
            if column.kind == "names"
            else key[:-3] + (digits[i]).to_bytes(3, "big")
        )
    values = column.values.take(pa.array(random.integers(0, len(column), len(places))))
    table = values.add_column(0, "key", pa.array(keys, pa.binary()))
    table = table.append_column("deleted", pa.array(kinds == 4))
    return _distinct(table.take(pc.sort_indices(table.column("key"))))


def _renewed_name(name: bytes, offset: int, digits: int) -> bytes:
    return name[:offset] + b"%04x" % digits + name[offset + 4 :]


def _distinct(table: pa.Table) -> pa.Table:
    keys = table.column("key").combine_chunks()
    is_new = np.append(True, pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False))
    return table.filter(pa.array(is_new)).combine_chunks()


def _changed(old: Path, merged: SortedFileReader, delta: pa.Table) -> tuple[pa.Table, int]:
    """The entries of the merged file's blocks that are none of the old file's, or among which one is newer; and how
    many blocks that is."""
    with SortedFileReader(old) as reader:
        kept = {(block.first_key, block.last_key, block.entries) for block in reader.blocks()}
    newer = delta.column("key").to_pylist()
    blocks = merged.blocks()
    is_changed = np.zeros(len(blocks), dtype=bool)
    for i, block in enumerate(blocks):
        position = bisect.bisect_left(newer, block.first_key)
        is_changed[i] = (block.first_key, block.last_key, block.entries) not in kept or (
            position < len(newer) and newer[position] <= block.last_key
        )
    rows = np.repeat(is_changed, [block.entries for block in blocks])
    return merged.scan_table().filter(pa.array(rows)).combine_chunks(), int(is_changed.sum())
