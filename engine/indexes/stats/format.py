"""The statistics index: bounds and counts by column and file.

    key      (kind u8, column u32, partition u32, sequence u32): a column, or one partition of it, is one prefix; the
             file's number follows the column
    row      kind 0: the location of a file's fine statistics (column 0), and, for a file in an object store, its footer
                     (`parquet/packed_footer.py`)
             kind 1: the aggregate of a column over a partition (sequence 0): the union of its files' statistics
                     (`EVIDENCE_FIELDS`), and the fingerprint of the files
             kind 2: the statistics of a column in a file (`column_stats.STATS_FIELDS`), and the physical schema under
                     which they were taken

A file that an index covers has an entry of kind 2 under every column of the index, which is empty if its statistics are
unknown. So the entries of a column whose index covers every file include all live files, and some removed ones.

Column ids begin at 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ....base.arrays import null_column
from ....hfile_like import KeyLayout
from ...parquet.column_stats import STATS_FIELDS
from ..columns import EVIDENCE_FIELDS

if TYPE_CHECKING:
    from ...state.run_format import EntryBatch, RunFormat

KEYS = KeyLayout([("kind", 1), ("column", 4), ("partition", 4), ("sequence", 4)])
KIND_FINE, KIND_AGGREGATE, KIND_FILE = 0, 1, 2
COLUMN_PREFIX_BYTES = 5
FINE_COLUMN = 0
FINE_FIELDS = [
    pa.field("fine_path", pa.string()),
    pa.field("fine_offset", pa.int64()),
    pa.field("fine_length", pa.int64()),
    pa.field("footer", pa.binary()),
]
SCHEMA_FIELD = pa.field("schema_id", pa.int32())
FINGERPRINT_FIELD = pa.field("fingerprint", pa.int64())
RUN_SCHEMA = pa.schema([*STATS_FIELDS, SCHEMA_FIELD, FINGERPRINT_FIELD, *FINE_FIELDS])
SUMMARIES = [*EVIDENCE_FIELDS, SCHEMA_FIELD.name]
BLOCK_BYTES = 3 << 20  # before encoding: about 32,000 entries, which shrink to a tenth


def run_form(options: Mapping[str, Any]) -> RunFormat:
    """Return the format of the runs of an index with these options."""
    from ...state.run_format import SHARD_BYTES, RunFormat

    return RunFormat(BLOCK_BYTES, tuple(SUMMARIES), options.get("shard_bytes", SHARD_BYTES), COLUMN_PREFIX_BYTES)


def no_statistics(count: int) -> pa.Table:
    """Return STATS_FIELDS of files with unknown statistics."""
    return pa.table({f.name: null_column(count, f.type) for f in STATS_FIELDS})


def joined_rows(parts: Sequence[EntryBatch]) -> EntryBatch:
    """Return the entries of several parts, with every field of the index's runs."""
    from ...state.run_format import EntryBatch

    return EntryBatch.concat(parts, RUN_SCHEMA)


def file_prefix(column_id: int) -> bytes:
    """Return the prefix of the keys of a column's file statistics; a file's number follows it."""
    return KEYS.prefix(kind=KIND_FILE, column=column_id)


def fine_prefix() -> bytes:
    return KEYS.prefix(kind=KIND_FINE, column=FINE_COLUMN)


def aggregate_prefix(column_id: int) -> bytes:
    return KEYS.prefix(kind=KIND_AGGREGATE, column=column_id)
