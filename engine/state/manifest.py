"""The manifest: its keys and rows, the fields of a file as tasks report them, and the number of a file.

    key      (kind u8, partition u32, sequence u32), big-endian: partitions first, then files by partition, then the
             files that were taken out while they lie on storage still: a sync must not take them for new ones;
             then the keys of idempotent commits, by 64 bits of their hash in the place of a file's number
    row      the fields of the kind; those of the other kind are null and take no bytes

A file's number is `partition << 32 | sequence`. Sequences are given at a commit, in order, and never given again, so
a number names one file for ever, and the files of a partition are one prefix.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import CorruptionError
from ...hfile_like import KeyLayout

# What a writer, a listing or a footer says of a file. `modified_ns`, `etag` and `deletes` are its identity beside
# path and size; `rows_exact` is False where the row count is only a bound; `merge` says how a log's rows meet the
# base's. Files of one slice share `file_group`, unique within the partition, and `slice_instant`.
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
PARTITION_PREFIX_BYTES = 5  # a large partition has blocks of its own, so that its files are read without others
SUMMARIES = ("segment", "rows_exact")
COMPACT = ("size_bytes", "modified_ns", "row_count", "live_rows", "live_bytes")

PARTITION_FIELDS = [
    pa.field("partition", pa.string()),
    pa.field("file_count", pa.int64()),
    pa.field("live_rows", pa.int64()),
    pa.field("live_bytes", pa.int64()),
    pa.field("fingerprint", pa.int64()),
]

STAT_FIELDS = ["size_bytes", "modified_ns", "etag"]  # what a storage says of a file
IDENTITY = ["path", *STAT_FIELDS]
SEGMENT_FIELD = pa.field("segment", pa.int64())
REMOVED_ROW = [*IDENTITY, SEGMENT_FIELD.name, "kind"]
CLEANED = "cleaned"  # the kind of a file that went and was removed from storage, too
KEY_ROW = ["path", "segment"]  # of a key: its text, and the version that it made

_NEVER_NULL = ("path", "size_bytes", "kind", SEGMENT_FIELD.name)
_INT64_MAX = (1 << 63) - 1

RUN_SCHEMA = pa.schema([*PARTITION_FIELDS, *FILE_FIELDS, SEGMENT_FIELD])


def check_files(rows: pa.Table, version: int, schema_count: int) -> None:
    """Raises CorruptionError for rows of files, as a manifest has them, that no file of a version can have: a run may
    be whole and crafted. `version`: the last that may have added one; `schema_count`: how many physical
    schemas there are."""
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
            ends = pc.min_max(column).as_py()
            low, high = limits[name]
            if ends["min"] < low or ends["max"] > high:
                message = f"a file in the manifest has a {name} that is not between {low} and {high}; restore its runs"
                raise CorruptionError(message, check="manifest")


def file_ids(partition: np.ndarray, sequence: np.ndarray) -> np.ndarray:
    """uint64 file numbers."""
    return (partition.astype(np.uint64) << np.uint64(32)) | sequence.astype(np.uint64)


def split_file_ids(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(partition, sequence) of file numbers, both uint32."""
    halves = np.ascontiguousarray(ids, dtype="<u8").view("<u4").reshape(-1, 2)
    return np.ascontiguousarray(halves[:, 1]), np.ascontiguousarray(halves[:, 0])


def key_number(key: str) -> int:
    """The number of the key of an idempotent commit."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")


def fingerprints(ids: np.ndarray) -> np.ndarray:
    """int64: a number for each file number, by whose sum (modulo 2^64) a set of files is known: two sets of one sum are
    the same set, but for a chance of one in 2^64. The finaliser of SplitMix64 (Steele, Lea, Flood, 2014)."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.int64)


def wrapped(number: int) -> int:
    """A number modulo 2^64, as int64 has it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
