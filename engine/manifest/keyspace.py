"""The keys and the rows of the manifest, and the number of a file.

    key      (kind u8, partition u32, sequence u32), big-endian: partitions first, then files by partition, then the
             files that were taken out while they lie on storage still: a sync must not take them for new ones
    row      the fields of the kind; those of the other kind are null and take no bytes

A file's number is `partition << 32 | sequence`. Sequences are given at a commit, in order, and never given again, so
a number names one file for ever, and the files of a partition are one prefix.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...hfile_like import KeyLayout
from ..ingest.task_result import FILE_FIELDS

KEYS = KeyLayout([("kind", 1), ("partition", 4), ("sequence", 4)])
KIND_PARTITION, KIND_FILE, KIND_GONE = 1, 2, 3
BLOCK_BYTES = 8 << 20  # before encoding: about 64,000 files
SUMMARIES = ("segment", "rows_exact")

PARTITION_FIELDS = [
    pa.field("partition", pa.string()),
    pa.field("file_count", pa.int64()),
    pa.field("live_rows", pa.int64()),
    pa.field("live_bytes", pa.int64()),
]

IDENTITY = ["path", "size_bytes", "modified_ns", "etag"]
SEGMENT_FIELD = pa.field("segment", pa.int64())

RUN_SCHEMA = pa.schema([*PARTITION_FIELDS, *FILE_FIELDS, SEGMENT_FIELD])


def file_ids(partition: np.ndarray, sequence: np.ndarray) -> np.ndarray:
    """uint64 file numbers."""
    return (partition.astype(np.uint64) << np.uint64(32)) | sequence.astype(np.uint64)


def split_file_ids(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(partition, sequence) of file numbers, both uint32."""
    ids = ids.astype(np.uint64)
    return (ids >> np.uint64(32)).astype(np.uint32), (ids & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
