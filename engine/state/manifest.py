"""The manifest: its keys and rows, the fields of a file as tasks report them, and the number of a file.

    key      (kind u8, partition u32, sequence u32), big-endian: partitions first, then files by partition, then the
             removed files that may still be on storage, because a sync must not add them as new ones; then the keys of
             idempotent commits, with 64 bits of their hash in the place of a file's number
    row      the fields of the kind; those of the other kind are null and take no bytes

A file's number is `partition << 32 | sequence`. Sequences are assigned at a commit, in order, and are never used twice,
so a number names one file permanently, and the files of a partition are one prefix.

File slices: which files of a group are read together, which are no longer read, and which contain nothing.

    group     files that share `file_group`, which is unique within its partition; a file without one is a group
    slice     the files of a group with one `slice_instant`: at most one base, and the logs over it

Slices are ordered by `slice_instant`: as numbers if every instant of the group consists of the digits 0-9, else as
texts by their UTF-8 bytes. A reader of a group reads its latest slice with a base, and the files of later slices,
whose base does not exist yet: a pending compaction. Earlier slices are superseded. A file without `slice_instant` in a
group has no place in that order, so it supersedes nothing and nothing supersedes it.

The states of the commits that wrote the files belong to the version that is read:

    completed      also if no state is known, or no commit is named
    inflight       a base does not exist yet; a log may exist, so it is read
    failed,        a base, log or block contains nothing, and is never read
    rolled_back
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, filled, string_array, string_scalar, to_numpy
from ...errors import CorruptionError
from ...hfile_like import KeyLayout
from . import COMPLETED, INFLIGHT

# What a writer, a listing or a footer reports about a file. `modified_ns`, `etag` and `deletes` are its identity with
# path and size; `rows_exact` is False if the row count is only a bound; `merge` is how a log's rows are merged with
# the base's. Files of one slice share `file_group`, unique within the partition, and `slice_instant`.
FILE_FIELDS = [
    pa.field("path", pa.string()),
    pa.field("size_bytes", pa.int64()),
    pa.field("modified_ns", pa.int64()),
    pa.field("etag", pa.string()),
    pa.field("deletes", pa.string()),
    pa.field("row_count", pa.int64()),
    pa.field("rows_exact", pa.bool_()),
    pa.field("row_groups", pa.int32()),
    pa.field("kind", pa.string()),
    pa.field("file_group", pa.string()),
    pa.field("slice_instant", pa.string()),
    pa.field("commit", pa.string()),
    pa.field("merge", pa.string()),
    pa.field("schema_id", pa.int32()),
]
BASE, LOG, DELETE, ROLLBACK = "base", "log", "delete", "rollback"
KINDS = (BASE, LOG, DELETE, ROLLBACK)

FILES_SCHEMA = pa.schema([pa.field("partition", pa.string()), *FILE_FIELDS])


KEYS = KeyLayout([("kind", 1), ("partition", 4), ("sequence", 4)])
KIND_PARTITION, KIND_FILE, KIND_REMOVED, KIND_KEY = 1, 2, 3, 4
BLOCK_BYTES = 16 << 20  # before encoding: about 80,000 files
PARTITION_PREFIX_BYTES = 5  # a large partition has separate blocks, so that its files are read without others
SUMMARIES = ("segment", "rows_exact")

PARTITION_FIELDS = [
    pa.field("partition", pa.string()),
    pa.field("file_count", pa.int64()),
    pa.field("live_rows", pa.int64()),
    pa.field("live_bytes", pa.int64()),
    pa.field("fingerprint", pa.int64()),
]

STAT_FIELDS = ["size_bytes", "modified_ns", "etag"]  # what a storage reports about a file
IDENTITY = ["path", *STAT_FIELDS]
SEGMENT_FIELD = pa.field("segment", pa.int64())
REMOVED_ROW = [*IDENTITY, SEGMENT_FIELD.name, "kind"]
CLEANED = "cleaned"  # the kind of a removed file that a clean deleted from storage, or was to delete
KEY_ROW = ["path", "segment"]  # of a key: its text, and the version that its commit created

_NEVER_NULL = ("path", "size_bytes", "kind", SEGMENT_FIELD.name)
_INT64_MAX = (1 << 63) - 1
COUNT_MAX = 1 << 48  # bytes or rows of a new file: the sum over 32,767 of them is an int64, as totals are

RUN_SCHEMA = pa.schema([*PARTITION_FIELDS, *FILE_FIELDS, SEGMENT_FIELD])


def check_files(rows: pa.Table, version: int, schema_count: int) -> None:
    """Raise CorruptionError if rows of files, as a manifest has them, contain values that no file of a version can
    have: a run may be intact and crafted. `version`: the last that may have added one; `schema_count`: the number of
    physical schemas."""
    limits = {
        "size_bytes": (0, _INT64_MAX),
        "row_count": (0, _INT64_MAX),
        "row_groups": (0, _INT64_MAX),
        "schema_id": (0, schema_count - 1),
        SEGMENT_FIELD.name: (1, version),
    }
    for name in rows.column_names:
        column = rows.column(name)
        if name in _NEVER_NULL and column.null_count:
            raise CorruptionError(f"a file in the manifest has no {name}; restore its runs", check="manifest")
        if name in limits and len(column) > column.null_count:
            known = to_numpy(column.drop_null() if column.null_count else column)
            low, high = limits[name]
            if int(known.min()) < low or int(known.max()) > high:
                message = f"a file in the manifest has a {name} that is not between {low} and {high}; restore its runs"
                raise CorruptionError(message, check="manifest")


def file_ids(partition: np.ndarray, sequence: np.ndarray) -> np.ndarray:
    """Return uint64 file numbers."""
    return (partition.astype(np.uint64) << np.uint64(32)) | sequence.astype(np.uint64)


def split_file_ids(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (partition, sequence) of file numbers, both uint32."""
    halves = np.ascontiguousarray(ids, dtype="<u8").view("<u4").reshape(-1, 2)
    return np.ascontiguousarray(halves[:, 1]), np.ascontiguousarray(halves[:, 0])


def key_number(key: str) -> int:
    """Return the number of the key of an idempotent commit."""
    import hashlib  # loads OpenSSL, which a plan does not need

    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")


def fingerprints(ids: np.ndarray) -> np.ndarray:
    """Return int64: a number for each file number. Their sum (modulo 2^64) identifies a set of files: two sets with one
    sum are equal, except by a chance of one in 2^64. The finaliser of SplitMix64 (Steele, Lea, Flood, 2014)."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.int64)


SNAPSHOT, READ_OPTIMIZED = "snapshot", "read_optimized"
MODES = (SNAPSHOT, READ_OPTIMIZED)
_ANY_SLICE = np.iinfo(np.int64).max  # the rank of a file without an instant, which is not before any slice
_NO_BASE = -1


@dataclass
class Slices:
    """How some files (whole groups of them, in their order) form groups and slices.

    group_of    int64 [files]: groups are numbered in the order of their first file
    groups      how many
    rank        int64 [files]: ascending with the slice instants of a group
    is_base     bool [files]: a base whose commit is completed
    is_dead     bool [files]: not read at this version: its commit failed, or it is a base that does not exist yet
    latest      int64 [groups]: the rank of the latest base; below every rank if there is none
    """

    group_of: np.ndarray
    groups: int
    rank: np.ndarray
    is_base: np.ndarray
    is_dead: np.ndarray
    latest: np.ndarray

    def live(self, mode: str = SNAPSHOT) -> np.ndarray:
        """Return bool [files]: those that are read; with "read_optimized" only the latest base of each group."""
        newest = ~self.is_dead & (self.rank >= self.latest[self.group_of])
        return newest & self.is_base if mode == READ_OPTIMIZED else newest


def slices_of(files: pa.Table, states: Mapping[str, str]) -> Slices:
    """Return the slices of a snapshot's files, given the states of the commits that wrote them
    (`Instant.commit_states`). The files must contain every group whole, as those of whole partitions do.
    """
    is_base_file = to_numpy(pc.equal(files.column("kind"), string_scalar(BASE)))
    is_over = _written_by(files, states, lambda state: state not in (COMPLETED, INFLIGHT))
    is_base = is_base_file & ~_written_by(files, states, lambda state: state != COMPLETED)
    is_dead = np.where(is_base_file, ~is_base, is_over)
    group_of, groups = _groups(files)
    latest = np.full(groups, _NO_BASE, dtype=np.int64)
    if groups == files.num_rows:
        rank = np.zeros(groups, dtype=np.int64)
    else:
        rank = _ranks(combine(files.column("slice_instant")), group_of, groups)
        ordered = is_base & (rank != _ANY_SLICE)
        np.maximum.at(latest, group_of[ordered], rank[ordered])
    return Slices(group_of, groups, rank, is_base, is_dead, latest)


def any_of(where: np.ndarray, flags: np.ndarray, count: int) -> np.ndarray:
    """Return bool [count] from bool [n]: true at `where[i]` for each flag i that is true."""
    result = np.zeros(count, dtype=bool)
    result[where[flags]] = True
    return result


def _written_by(files: pa.Table, states: Mapping[str, str], is_wanted: Callable[[str], bool]) -> np.ndarray:
    """Return bool [files]: those that name a commit whose state is wanted."""
    commits = [commit for commit, state in states.items() if is_wanted(state)]
    if not commits:
        return np.zeros(files.num_rows, dtype=bool)
    return to_numpy(pc.is_in(files.column("commit"), value_set=string_array(commits)))


def _groups(files: pa.Table) -> tuple[np.ndarray, int]:
    """Number the groups in the order of their first file: a file group of a partition, or a file without a group."""
    numbers = np.arange(files.num_rows)
    column = files.column("file_group")
    if column.null_count == files.num_rows:
        return numbers, files.num_rows
    names, name_of = _numbered(combine(column))
    partition = to_numpy(files.column("partition_id")).astype(np.int64)
    ids = np.where(name_of >= 0, partition * (len(names) + 1) + name_of, -1 - numbers)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return place[inverse], len(first)


def _numbered(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return (the distinct texts, int64: the position of each text among them, -1 if null)."""
    coded = pc.dictionary_encode(texts, null_encoding="mask")
    return coded.dictionary, to_numpy(filled(coded.indices.cast(pa.int64()), -1))


def _ranks(instants: pa.Array, group_of: np.ndarray, groups: int) -> np.ndarray:
    """Return int64 [files]: the order of slice instants within a group; the same for equal ones."""
    texts, text_of = _numbered(instants)
    if len(texts) == 0:
        return np.full(len(text_of), _ANY_SLICE, dtype=np.int64)
    by_text = _dense(texts)
    digits = pc.ascii_ltrim(texts, characters="0")
    lengths = to_numpy(pc.binary_length(digits)).astype(np.int64)
    _, by_number = np.unique(lengths * (len(texts) + 1) + _dense(digits), return_inverse=True)
    is_number = to_numpy(pc.ascii_is_decimal(texts))
    is_named = text_of >= 0
    has_words = any_of(group_of, is_named & ~is_number[text_of], groups)
    ranks = np.where(has_words[group_of], by_text[text_of], by_number[text_of])
    return np.where(is_named, ranks, _ANY_SLICE)


def _dense(texts: pa.Array) -> np.ndarray:
    """Return int64: the position of each text in the order of all, the same for equal ones."""
    return to_numpy(pc.rank(texts, tiebreaker="dense")).astype(np.int64)
