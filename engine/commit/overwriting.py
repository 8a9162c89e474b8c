"""Which files an overwrite takes out: all that are live, or those of the partitions that were written.

Partitions are compared by their values. One that others wrote may be spelled in another way (`month=01` for 1, `%2f`
for `%2F`), and its rows are of the partition that is overwritten all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pyarrow as pa

from ..ingest import hive
from ..manifest.snapshot import Snapshot


def live_files(snapshot: Snapshot, partition_ids: Sequence[int] | None = None) -> dict[int, str]:
    """file id -> path of the live files, of some partitions where they are given (ascending)."""
    if partition_ids is not None and not partition_ids:
        return {}
    files = snapshot.files(partition_ids, ["path"])
    return dict(zip(files.column("file_id").to_pylist(), files.column("path").to_pylist(), strict=True))


def same_partitions(snapshot: Snapshot, texts: Iterable[pa.Array | pa.ChunkedArray]) -> list[int]:
    """The ids, ascending, of the partitions with files that have the values of one of the texts."""
    schema = snapshot.instant.schema
    fields = [schema.field(name) for name in snapshot.instant.partitioning]
    wanted = pa.array(sorted({text for some in texts for text in some.to_pylist()}), pa.string())
    if not len(wanted):
        return []
    keys = set(_keys(hive.typed_columns(wanted, fields)))
    known = snapshot.partition_values()
    there = _keys([known[field.name] for field in fields])
    ids = snapshot.partitions().column("partition_id").to_pylist()
    return sorted(number for number, key in zip(ids, there, strict=True) if key in keys)


def _keys(columns: Sequence[pa.Array]) -> list[tuple]:
    """One tuple a row, equal where SQL calls the values equal; null is one, and so is NaN."""
    return list(zip(*([_plain(v) for v in _comparable(c).to_pylist()] for c in columns), strict=True))


def _comparable(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _plain(value: object) -> object:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
