"""Tasks, which a driver passes to readers: small, picklable, and enough to prune and read without the index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, from_numpy, offsets_of, to_numpy
from ...errors import CorruptionError
from ..indexes.columns import ColumnInFiles
from ..parquet.leaves import NestedNames
from ..predicates import Node, with_implied
from ..storage import StorageOptions
from .units import TASK_FIELDS

if TYPE_CHECKING:
    from ..indexes.bloom.file_filter import FileFilter
    from ..state.snapshot import Snapshot
    from .prune import StatsReader
    from .units import PruningState

_FOOTERS_MAX = 256  # of more files the footers are not part of the tasks
_FLAGS = ("is_exact", "all_match", "may_prune", "has_rows")
PARTITION, _FINE = "partition:", "fine:"
_PLACE = ("fine_path", "fine_offset", "fine_length")


@dataclass
class FileTask:
    """One file to be read. It is never changed: a frozen class would take three times as long to make.

    path, size_bytes, modified_ns, etag    where it is and what was planned; another identity is another file
    partition       value of each partition column
    row_count       rows; exact if `is_exact`
    schema_id       which of the version's file schemas
    all_match       every row of the file matches
    may_prune       its row groups may be pruned (not if other files apply to it)
    has_rows        False for what only undoes others: it is named, and nothing of it is read
    fine            (index file, offset, length) of its fine statistics: one a statistics index that has some
    filters         column -> (index file, fine filter)
    rows            int64, ascending: positions in the file outside of which no row can match; None: not known, as
                    when logs apply to the file
    rows_exact      each of `rows` matches the whole predicate, unless it was deleted
    footer          the file's footer as the index has it (`parquet/packed_footer.py`); None: it is read from the file
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
    footer: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ReadContext:
    """What is the same for every file of a scan.

    location, index_location, storage_options    of the table and of its index
    schema          the table's
    columns         names to read, in order
    bound           the predicate, bound to the schema
    derived         what elements of lists and expressions are called that an index covers, as `with_implied` takes it
    partitioning    names of the partition columns
    strict          a damaged fine part is an error
    columns_in_files    where each column of the predicate is in the files, by the schema ids of tasks
    names           by schema id: the physical names of the columns that are read or tested; others are not in the files
    nested          by schema id: the table's names of fields within columns, if files have others; empty: in no file
    defaults        the value of such columns in files that lack them, if not null
    deletes         path -> int64, ascending: the rows that are no more, by their position in the file
    by_duckdb       the files that DuckDB read: filled in as files are read
    by_pyarrow      of each file that pyarrow read: how many row groups whole, and how many in part: filled in as well
    why_pyarrow     why pyarrow reads files; the last reason counts
    fields          by column: the dotted paths that are used of it, if fewer than the whole struct
    unopened        schema ids of files that were never opened: their contents were only declared
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
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    deletes: dict[str, np.ndarray] = field(default_factory=dict)
    by_duckdb: list[str] = field(default_factory=list, compare=False)
    by_pyarrow: list[tuple[int, int]] = field(default_factory=list, compare=False)
    why_pyarrow: list[str] = field(default_factory=list, compare=False)
    unopened: frozenset[int] = frozenset()
    nested: tuple[NestedNames, ...] = ()
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    derived: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def pruning(self) -> Node:
        """The predicate with what it implies of elements and expressions: for pruning alone."""
        return with_implied(self.bound, self.derived)


@dataclass
class RowGroups:
    """The row groups of a file that may match.

    kept         row group numbers, ascending; None if the file's row groups are not known: all of it
    total        how many the file has; None if not known
    row_counts   rows of each kept one
    all_match    bool, of each kept one: every row matches
    first_rows   position in the file of the first row of each kept one; None if not known
    """

    kept: list[int] | None
    total: int | None = None
    row_counts: list[int] | None = None
    all_match: list[bool] | None = None
    first_rows: list[int] | None = None

    @classmethod
    def all_of(cls, task: FileTask) -> RowGroups:
        """What is read of a file whose row groups are not known."""
        is_empty = not task.has_rows or (task.rows is not None and not len(task.rows))
        return cls([], 0, [], []) if task.may_prune and is_empty else cls(None)

    def part(self, chosen: Sequence[int]) -> RowGroups:
        """Some of the kept row groups, by their position among these."""

        def of(items: list | None) -> list | None:
            return None if items is None else [items[i] for i in chosen]

        return RowGroups(of(self.kept), self.total, of(self.row_counts), of(self.all_match), of(self.first_rows))


Pair = tuple[FileTask, RowGroups]  # a file, and its row groups that may match


def rows_read(task: FileTask, groups: RowGroups, *, per_named_row: int = 1) -> int:
    """Estimate how many rows of a file are decoded: those of the kept row groups, or so many per row that an index
    named."""
    row_count = task.row_count if groups.row_counts is None else sum(groups.row_counts)
    return row_count if task.rows is None else min(len(task.rows) * per_named_row, row_count)


# -- made on the driver ------------------------------------------------------------------------------------------------


class TaskRows(NamedTuple):
    """The tasks of some files as columns: a million tasks are a few arrays instead of millions of objects.

    columns    the fields of `FileTask`, one row a file. `partition:` and a name: the values of a partition column.
               `fine:`, a number and a name: path, offset and length in one statistics index, null if it has none.
               `footer`: if footers were requested. `positions`: `FileTask.rows`, lists of int64; missing, with
               `rows_exact`, if no index knows any
    filters    as of `FileTask`, a list a column
    """

    columns: pa.Table
    filters: dict[str, list[tuple[str, FileFilter] | None]]

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        evidence: StatsReader,
        remaining: PruningState,
        names: Sequence[str],
        files: slice = slice(None),
        with_fine: bool = True,
        with_footers: bool = False,
    ) -> TaskRows:
        """One row a file of the units that are kept, or of those of their `files`: see `tasks_of`."""
        units, ids, unit_of = remaining.units, remaining.ids[files], remaining.units.unit_of[files]
        is_read = set(TASK_FIELDS) <= set(units.files.column_names)
        rows = units.files.slice(files.start or 0, len(ids)) if is_read else snapshot.rows(ids, TASK_FIELDS)
        columns = {name: rows.column(name) for name in TASK_FIELDS}
        columns |= partition_values(snapshot, rows.column("partition_id"))
        matching = remaining.rows_to_read
        flags = {
            "is_exact": units.exact[unit_of],
            "all_match": remaining.only_true[unit_of],
            "may_prune": units.readable[unit_of],
            "has_rows": units.has_rows[files],
        }
        if matching is not None:
            flags["rows_exact"] = matching.is_exact[files]
            columns["positions"] = matching.lists(files, units.is_single_file_slice[files])
        columns |= {name: from_numpy(values) for name, values in flags.items()}
        filters = {}
        located = evidence.fine_locations(ids, names, with_footers=with_footers) if with_fine or with_footers else []
        if with_footers and located:
            columns["footer"] = pc.coalesce(*(of_index.column("footer") for of_index in located))
        if with_fine:
            for number, of_index in enumerate(located):
                columns |= {f"{_FINE}{number}:{name}": of_index.column(name) for name in _PLACE}
            for column, places in remaining.fine.items():
                of_files = places.selected(np.arange(len(places.ids))[files])
                filters[column] = evidence.retry_without_damaged_runs(partial(of_files.located, evidence.damaged))
        return cls(pa.table(columns), filters)

    def tasks(self) -> list[FileTask]:
        """One task a row."""
        count, has_column = self.columns.num_rows, set(self.columns.column_names).__contains__
        of: dict[str, Sequence[Any]] = {
            name: self.columns.column(name).to_pylist()
            for name in (*TASK_FIELDS, *_FLAGS, "footer", "rows_exact")
            if has_column(name)
        }
        names = [name for name in self.columns.column_names if name.startswith(PARTITION)]
        values = zip(*(list(self.columns.column(name)) for name in names), strict=True)
        names = [name.removeprefix(PARTITION) for name in names]
        of["partition"] = [dict(zip(names, row, strict=True)) for row in values] or [{} for _ in range(count)]
        places = zip(*_places(self.columns), strict=True)
        of["fine"] = [tuple(place for place in row if place[0] is not None) for row in places] or [()] * count
        of["filters"] = [{c: one for c, of_files in self.filters.items() if (one := of_files[i])} for i in range(count)]
        if has_column("positions"):
            of["rows"] = _lists(self.columns.column("positions"))
        columns = [of[one.name] if one.name in of else repeat(one.default, count) for one in fields(FileTask)]
        return [FileTask(*row) for row in zip(*columns, strict=True)]


def tasks_of(
    snapshot: Snapshot,
    evidence: StatsReader,
    remaining: PruningState,
    columns: Sequence[str],
    *,
    with_fine: bool = True,
    with_footers: bool = False,
) -> list[FileTask]:
    """One task per file of the units that are kept. It contains the positions of the fine statistics of some columns
    unless `with_fine=False`. `with_footers`: tasks of few files contain their footers if the index has them."""
    count = remaining.units.files.num_rows
    if count == 0:
        return []
    with_footers = with_footers and count <= _FOOTERS_MAX
    rows = TaskRows.of(snapshot, evidence, remaining, columns, with_fine=with_fine, with_footers=with_footers)
    return rows.tasks()


def partition_values(snapshot: Snapshot, ids: pa.ChunkedArray) -> dict[str, pa.Array]:
    """The partition columns' values of each file, by the ids of their partitions."""
    if not snapshot.instant.partitioning:
        return {}
    partition_ids = to_numpy(snapshot.partitions().column("partition_id"))
    places = from_numpy(np.searchsorted(partition_ids, to_numpy(ids)))
    return {f"{PARTITION}{name}": values.take(places) for name, values in snapshot.partition_values().items()}


def _places(columns: pa.Table) -> list[list[tuple[str, int, int]]]:
    """The positions of each file's fine statistics, by index; (None, None, None) if it has none."""
    values = [columns.column(name).to_pylist() for name in columns.column_names if name.startswith(_FINE)]
    return [list(zip(*values[i : i + 3], strict=True)) for i in range(0, len(values), 3)]


def _lists(column: pa.ChunkedArray) -> list[np.ndarray | None]:
    """Each list of a column as an array, None for null."""
    lists = combine(column)
    offsets, values = to_numpy(lists.offsets).tolist(), to_numpy(lists.values)
    is_list = to_numpy(lists.is_valid()).tolist()
    return [values[a:b] if valid else None for a, b, valid in zip(offsets, offsets[1:], is_list, strict=False)]


# -- rows that an index names by their positions in a file -------------------------------------------------------------


def row_counts_in_groups(task: FileTask, row_counts: np.ndarray) -> np.ndarray:
    """int64 [row groups]: how many rows of `task.rows` each contains; `row_counts` is of all row groups of the file.

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
            f"{int(firsts[-1]):,} rows; drop the index and create it again",
            path=task.path,
            check="positions",
        )
    return np.searchsorted(rows, firsts)
