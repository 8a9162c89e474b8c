"""The filters of one file that lies there already, from its key column alone.

Row groups are read one after the other in a thread of their own while those before are hashed; what is held is bounded
(`ingest/task_filters.py`), however large the file is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ... import canon
from ...bloom import SplitBlockFilter, hash_array
from ...errors import SchemaError, StorageError
from ..ahead import ahead
from ..ingest.filter_sizing import FilterSizing
from ..ingest.footers import open_parquet, prefetch, reading, row_groups_of
from ..ingest.leaves import leaf_array, top_level
from ..ingest.sources import parquet_options
from ..ingest.task_filters import FineFilters, Spool, TaskFilter
from ..scan.columns import ColumnInFiles

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from ..table import Table


@dataclass
class FileFilters:
    """What was made of one file. `close` lets go of what its fine filters take while they wait to be written."""

    fine: FineFilters
    whole: SplitBlockFilter
    hash_name: str
    spool: Spool

    def close(self) -> None:
        self.spool.close()


def hashed_file(table: Table, row: dict[str, Any], known: ColumnInFiles, sizing: FilterSizing) -> FileFilters:
    """The filters of a file of the manifest, from the values of its column; `row` tells its path and identity.

    Raises SchemaError where it is not known where the column lies in it, StorageError for another file than was
    indexed, CorruptionError for one that cannot be read.
    """
    spool = Spool()
    try:
        with opened(table, row) as file:
            groups = row_groups_of(file.metadata)
            path = path_in(table, row, known, file)
            fine, whole = FineFilters(sizing, spool), TaskFilter(sizing, file.metadata.num_rows)
            name = canon.hash_name(known.type if path is None else known.located[row["schema_id"]][1]) or ""
            with contextlib.closing(_hashes(file, row["path"], path, known)) as found:
                for group, hashes in zip(groups, found, strict=True):
                    whole.add(fine.add(hashes, group.size_bytes))
        whole.add_file(fine.finish([group.size_bytes for group in groups]))
        return FileFilters(fine, whole.finish(name), name, spool)
    except BaseException:
        spool.close()
        raise


def opened(table: Table, row: dict[str, Any]) -> pq.ParquetFile:
    """The file that the manifest tells of, open. Raises StorageError where another lies there now."""
    entry = table.storage.stat(row["path"])
    if not entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"]):
        raise StorageError(f"{row['path']}: overwritten since it was indexed; sync() the table")
    return open_parquet(table.storage, entry, **parquet_options(table.instant.source))


def path_in(table: Table, row: dict[str, Any], known: ColumnInFiles, file: pq.ParquetFile) -> str | None:
    """The dotted path of the column in the file; None where the file lacks it."""
    number = row["schema_id"]
    path, _ = known.located.get(number, (None, known.type))
    if path is None and number not in known.lacking:
        raise SchemaError(f"{row['path']}: where the column lies in it is not known")
    if path is None or top_level(table.instant.file_schemas[number].schema, path) not in file.schema_arrow.names:
        return None
    return path


def _hashes(file: pq.ParquetFile, name: str, path: str | None, known: ColumnInFiles) -> Generator[np.ndarray]:
    """uint64: the hashes of each row group's values, nulls left out."""
    count = file.metadata.num_row_groups
    if path is None:
        default = pa.nulls(1, known.type) if known.default is None else pa.repeat(known.default, 1)
        yield from [hash_array(default).present()] * count
        return

    def read(group: int) -> pa.Table:
        with reading(name):
            prefetch(file, group, [path])
            return file.read_row_group(group, columns=[path])

    rows = map(read, range(count)) if count < 2 else ahead(read, range(count), 1, "skipstone-read")
    for group in rows:
        yield hash_array(leaf_array(group, path)).present()
