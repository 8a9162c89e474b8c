"""What a driver hands to whoever reads: small, picklable, and enough to prune and read without the index's footers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy, offsets_of, to_numpy
from ...errors import CorruptionError
from ..indexes.columns import ColumnInFiles
from ..parquet.nested_names import NestedNames
from ..predicates import Node
from ..storage import StorageOptions

if TYPE_CHECKING:
    from ..indexes.bloom.file_filter import FileFilter
    from ..state.snapshot import Snapshot
    from .evidence_reader import EvidenceReader
    from .survivors import Survivors

_TASK_FIELDS = ["path", "size_bytes", "modified_ns", "etag", "row_count", "schema_id"]


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
    columns_in_files    where each column of the predicate lies in the files, by the schema ids of tasks
    names           by schema id: the physical names of the columns that are read or tested; others are not in the files
    nested          by schema id: the table's names of fields within columns, where files have others; empty: nowhere
    defaults        what such columns hold in files that lack them, where that is not null
    parquet_options    how pyarrow opens the files
    deletes         path -> int64, ascending: the rows that are no more, by their position in the file
    reader          what reads rows by position: "pyarrow" or "duckdb"
    left_to_pyarrow    columns, by the files' names, that it did not read: filled in as files are read
    fields          by column: the dotted paths that are used of it, where that is less than the whole struct
    unopened        schema ids of files that nobody has opened: what they hold was only declared
    """

    location: str
    index_location: str
    schema: pa.Schema
    columns: tuple[str, ...]
    bound: Node
    partitioning: tuple[str, ...]
    columns_in_files: dict[str, ColumnInFiles]
    names: tuple[dict[str, str], ...]
    defaults: dict[str, pa.Scalar]
    strict: bool = False
    parquet_options: dict[str, str] = field(default_factory=dict)
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    deletes: dict[str, np.ndarray] = field(default_factory=dict)
    reader: str = "pyarrow"
    left_to_pyarrow: set[str] = field(default_factory=set, compare=False)
    unopened: frozenset[int] = frozenset()
    nested: tuple[NestedNames, ...] = ()
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class RowGroups:
    """The row groups of a file that may match.

    kept         row group numbers, ascending; None where the file's row groups are not known: all of it
    total        how many the file has; None where not known
    row_counts   rows of each kept one
    all_match    bool, of each kept one: every row matches
    """

    kept: list[int] | None
    total: int | None = None
    row_counts: list[int] | None = None
    all_match: list[bool] | None = None


# -- made on the driver ------------------------------------------------------------------------------------------------


def tasks_of(
    snapshot: Snapshot, evidence: EvidenceReader, survivors: Survivors, columns: Sequence[str], with_fine: bool = True
) -> list[FileTask]:
    """One task a file of the units that are kept; it says where the fine statistics of some columns lie, unless nobody
    asks for them (`with_fine=False`)."""
    units, files, ids = survivors.units, survivors.units.files, survivors.ids
    if files.num_rows == 0:
        return []
    partitions = _partition_values(snapshot, files)
    located = evidence.fine_locations(ids, columns) if with_fine else [()] * len(ids)
    rows = survivors.rows_matching
    filters = {
        column: evidence.without_damaged(lambda places=places: places.located(evidence.damaged))  # type: ignore[misc]
        for column, places in (survivors.fine.items() if with_fine else ())
    }
    tasks = []
    for i, row in enumerate(snapshot.rows(ids, _TASK_FIELDS).to_pylist()):
        unit = units.unit_of[i]
        tasks.append(
            FileTask(
                path=row["path"],
                size_bytes=row["size_bytes"],
                modified_ns=row["modified_ns"],
                etag=row["etag"],
                partition=partitions[i],
                row_count=row["row_count"],
                is_exact=bool(units.exact[unit]),
                schema_id=row["schema_id"],
                all_match=bool(survivors.only_true[unit]),
                may_prune=bool(units.readable[unit]),
                has_rows=bool(units.has_rows[i]),
                fine=located[i],
                rows=None if rows is None or not units.is_alone[i] else rows.of_file(i),
                rows_exact=rows is not None and bool(rows.is_exact[i]),
                filters={column: fine for column, of_tasks in filters.items() if (fine := of_tasks[i]) is not None},
            )
        )
    return tasks


def _partition_values(snapshot: Snapshot, files: pa.Table) -> list[dict[str, pa.Scalar]]:
    """The partition columns' values of each file."""
    names = snapshot.instant.partitioning
    if not names:
        return [{}] * files.num_rows
    partition_ids = to_numpy(snapshot.partitions().column("partition_id"))
    used, of_file = np.unique(to_numpy(files.column("partition_id")), return_inverse=True)
    rows_of = from_numpy(np.searchsorted(partition_ids, used))
    values = snapshot.partition_values()
    rows = zip(*(list(values[name].take(rows_of)) for name in names), strict=True)
    by_partition = [dict(zip(names, row, strict=True)) for row in rows]
    return [by_partition[i] for i in of_file.tolist()]


# -- rows that an index names by their positions in a file -------------------------------------------------------------


def row_counts_in_groups(task: FileTask, row_counts: np.ndarray) -> np.ndarray:
    """int64 [row groups]: how many rows of `task.rows` each holds; `row_counts` is of all row groups of the file.

    Raises CorruptionError for a position that the file does not have.
    """
    return np.diff(_cuts(task, row_counts))


def within_groups(
    task: FileTask, row_counts: np.ndarray, group_numbers: Sequence[int], deleted: np.ndarray | None
) -> list[tuple[int, np.ndarray]]:
    """(row group, positions within it) of `task.rows` that were not deleted, for those of the kept row groups that hold
    some. Raises as `row_counts_in_groups`."""
    cuts, firsts = _cuts(task, row_counts), offsets_of(row_counts)
    positions_in = []
    for group in group_numbers:
        rows = task.rows[cuts[group] : cuts[group + 1]]  # type: ignore[index]
        if deleted is not None:
            rows = np.setdiff1d(rows, deleted, assume_unique=True)
        if len(rows):
            positions_in.append((group, rows - firsts[group]))
    return positions_in


def _cuts(task: FileTask, row_counts: np.ndarray) -> np.ndarray:
    """int64 [row groups + 1]: where the positions of each row group begin in `task.rows`."""
    rows, firsts = task.rows, offsets_of(row_counts)
    assert rows is not None
    if len(rows) and (rows[0] < 0 or rows[-1] >= firsts[-1]):
        raise CorruptionError(
            f"an index names row {int(rows[0] if rows[0] < 0 else rows[-1]):,} of this file, which has "
            f"{int(firsts[-1]):,} rows; drop the index and create it anew",
            path=task.path,
            check="positions",
        )
    return np.searchsorted(rows, firsts)
