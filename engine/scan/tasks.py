"""What a driver hands to whoever reads: small, picklable, and enough to prune and read without the index's footers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ..indexes.bloom.file_filter import FileFilter
from ..indexes.columns import ColumnInFiles
from ..predicates import Node
from ..storage import StorageOptions


@dataclass(frozen=True)
class FileTask:
    """One file to be read.

    path, size_bytes, modified_ns, etag    where it is and what was planned; another identity is another file
    partition       value of each partition column
    row_count       rows; exact where `is_exact`
    schema_id       which of the version's file schemas
    all_match       every row of the file matches
    may_prune       its row groups may be pruned (not where other files lie over it)
    has_rows        False for what only undoes others: it is named, and nothing of it is read
    fine            (index file, offset, length) of its fine statistics: one a statistics index that has some
    filters         column -> (index file, fine filter)
    rows            int64, ascending: positions in the file outside of which no row can match; None: not known, as where
                    logs lie over the file
    rows_exact      each of `rows` matches the whole predicate, unless it was deleted
    """

    path: str
    size_bytes: int
    modified_ns: int | None
    partition: dict[str, pa.Scalar]
    row_count: int
    is_exact: bool
    schema_id: int
    all_match: bool
    may_prune: bool
    has_rows: bool = True
    fine: tuple[tuple[str, int, int], ...] = ()
    filters: dict[str, tuple[str, FileFilter]] = field(default_factory=dict)
    etag: str | None = None
    rows: np.ndarray | None = field(default=None, compare=False)
    rows_exact: bool = False


@dataclass(frozen=True)
class ReadContext:
    """What is the same for every file of a scan.

    location, index_location, storage_options    of the table and of its index
    schema          the table's
    columns         names to read, in order
    bound           the predicate, bound to the schema
    partitioning    names of the partition columns
    strict          a damaged fine part is an error
    known           where each column of the predicate lies in the files, by the schema ids of tasks
    names           by schema id: the physical names of the columns that are read or tested; others are not in the files
    defaults        what such columns hold in files that lack them, where that is not null
    parquet_options    how pyarrow opens the files
    deletes         path -> int64, ascending: the rows that are no more, by their position in the file
    reader          what reads rows by position: "pyarrow" or "duckdb"
    left_to_pyarrow    columns, by the files' names, that it did not read: filled in as files are read
    unopened        schema ids of files that nobody has opened: what they hold was only declared
    """

    location: str
    index_location: str
    schema: pa.Schema
    columns: tuple[str, ...]
    bound: Node
    partitioning: tuple[str, ...]
    known: dict[str, ColumnInFiles]
    names: tuple[dict[str, str], ...]
    defaults: dict[str, pa.Scalar]
    strict: bool = False
    parquet_options: dict[str, str] = field(default_factory=dict)
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    deletes: dict[str, np.ndarray] = field(default_factory=dict)
    reader: str = "pyarrow"
    left_to_pyarrow: set[str] = field(default_factory=set, compare=False)
    unopened: frozenset[int] = frozenset()
