"""The result that a writer's task passes to the commit: a task index file on storage, and a small, picklable object.

The task index file contains the fine statistics of the files that the task wrote or attached:

    key       (file u32, column u32, row_group u32): local ordinals, because a writer has no ids; the commit assigns
              them
    row       `column`, the physical dotted path, and the statistics (`column_stats.STATS_FIELDS`)
    groups    one file, or several with few row groups, named by the first file's ordinal. The statistics index stores
              the offset and length per file, so an executor reads them in one range without the footer

The parts of other indexes that a task builds are in separate files (`IndexPart`).

Column ordinal 0 describes the row groups themselves: `value_count` rows, `compressed_bytes` in the file. The first
entry also contains the `path_mark` of its data file as `min_bytes`, by which a reader finds the entries of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import array_of, from_numpy, string_array, string_scalar, to_numpy
from ...errors import CorruptionError
from ...hfile_like import KeyLayout
from ..parquet.column_stats import STATS_FIELDS, ColumnStats, combine, to_columns
from ..parquet.leaves import NestedNames
from ..state import Run
from ..state.manifest import BASE, FILES_SCHEMA
from ..state.runs import written_as
from ..storage import Storage

if TYPE_CHECKING:
    from ..parquet.footer_bytes import RowGroup

# -- the result -------------------------------------------------------------------------------------------------------


FILE_STATS_SCHEMA = pa.schema([pa.field("file", pa.int64()), pa.field("column", pa.int32()), *STATS_FIELDS])


def quarantined_file(path: str, reason: str, rows: int | None = None) -> dict:
    """Return the record of a quarantined file for `Instant.quarantined`."""
    return {"path": path, "reason": reason, "rows": rows}


@dataclass
class TaskResult:
    """The files of one task and their statistics.

    files                  one row per file (FILES_SCHEMA); `schema_id` is a position in `schemas`
    schemas                the physical schemas of the files; `schema_id` is null for a file whose schema is unknown
    stats                  one row per file and column (FILE_STATS_SCHEMA); `column` is a position in `stats_columns`
    index                  the task index file; None without fine statistics
    written                the files of `files` that this task wrote itself: an abort removes them
    declares_partitions    True if partitions were given, and paths need not contain them
    names                  for each of `schemas`, the columns' names in the table by their names in the file; empty if
                           they are equal
    nested                 for each of `schemas`, the same for fields within columns (`parquet/leaves.py`), if there are
                           `names`
    declared_names         {name in the table: name in the file} of files with unknown schemas, if they differ
    transaction            the owner of the task: no other transaction may commit or remove the written files
    copies                 {path: path of a file of the table with the same rows in the same row groups, except for new
                           values in the columns `updated`}
    """

    files: pa.Table
    schemas: list[pa.Schema]
    stats: pa.Table
    stats_columns: list[str]
    index: TaskIndex | None = None
    written: list[str] = field(default_factory=list)
    declares_partitions: bool = False
    quarantined: list[dict] = field(default_factory=list)
    names: list[dict[str, str]] = field(default_factory=list)
    nested: list[NestedNames] = field(default_factory=list)
    declared_names: dict[str, str] = field(default_factory=dict)
    transaction: str | None = None
    copies: dict[str, str] = field(default_factory=dict)
    updated: tuple[str, ...] = ()

    def schema_counts(self) -> list[tuple[pa.Schema, int]]:
        """Return the physical schemas of the files, each with the number of files."""
        ids, counts = np.unique(to_numpy(self.files.column("schema_id").drop_null()), return_counts=True)
        return [(self.schemas[i], count) for i, count in zip(ids.tolist(), counts.tolist(), strict=True)]

    def without(self, dropped: np.ndarray) -> TaskResult:
        """Return the result without some files (bool [files])."""
        place = np.cumsum(~dropped) - 1  # of each remaining file
        file = to_numpy(self.stats.column("file"))
        stays = ~dropped[file]
        stats = self.stats.filter(from_numpy(stays)).set_column(0, "file", from_numpy(place[file[stays]]))
        index = None
        if self.index is not None:
            stays_at = np.flatnonzero(~dropped).tolist()
            index = replace(
                self.index,
                fine=self.index.fine[~dropped],
                footers=[self.index.footers[i] for i in stays_at],
            )
        files = self.files.filter(from_numpy(~dropped))
        ids = files.column("schema_id")
        used = ids.drop_null().unique().sort().to_pylist()  # drop schemas that no file has
        position = files.schema.get_field_index("schema_id")
        files = files.set_column(position, "schema_id", pc.index_in(ids, value_set=pa.array(used, pa.int32())))
        return replace(
            self,
            files=files,
            stats=stats,
            index=index,
            schemas=[self.schemas[i] for i in used],
            names=[self.names[i] for i in used] if self.names else [],
            nested=[self.nested[i] for i in used] if self.nested else [],
        )

    def names_of(self, position: int) -> tuple[dict[str, str] | None, NestedNames]:
        """Return `names` (or None) and `nested` of one of `schemas`."""
        return self.names[position] if self.names else None, self.nested[position] if self.nested else {}


@dataclass
class AddedFiles:
    """The files of one task result, with their ids.

    ids           uint64 [n]
    schema_ids    int64 [n]: the file schema of each
    """

    result: TaskResult
    ids: np.ndarray
    schema_ids: np.ndarray


class ResultBuilder:
    """Collects files one by one; rows of statistics become arrays at the end."""

    def __init__(self) -> None:
        self._files: list[dict] = []
        self._schemas: dict[tuple[pa.Schema, tuple | None, tuple], int] = {}
        self._newest: tuple[tuple, int] = ((), -1)  # the newest file's key and position in `_schemas`
        self._columns: dict[str, int] = {}
        self._stats: list[ColumnStats] = []
        self._stats_file: list[int] = []
        self._stats_column: list[int] = []

    def __len__(self) -> int:
        return len(self._files)

    def add(
        self,
        *,
        path: str,
        partition: str,
        size_bytes: int,
        modified_ns: int | None,
        etag: str | None,
        schema: pa.Schema,
        row_groups: Sequence[RowGroup],
        stats: dict[str, list[ColumnStats]],
        deletes: str | None = None,
        names: dict[str, str] | None = None,
        nested: NestedNames | None = None,
        of_slice: Mapping[str, str | None] | None = None,
    ) -> None:
        """Add one base file whose footer or rows were read. Its counts are exact, unless `deletes` of a log remove
        rows. `names`, `nested`: the table's names of its columns, and of fields within them; `of_slice`: its file
        group, slice, commit."""
        ordinal = len(self._files)
        self._files.append(
            {
                "partition": partition,
                "path": path,
                "size_bytes": size_bytes,
                "modified_ns": modified_ns,
                "etag": etag,
                "row_count": sum(g.row_count for g in row_groups),
                "deletes": deletes,
                "rows_exact": deletes is None,
                "row_groups": len(row_groups),
                "kind": BASE,
                "schema_id": self._schema_id(schema, names, nested),
                **(of_slice or {}),
            }
        )
        for column, parts in stats.items():
            self._stats.append(combine(parts))
            self._stats_file.append(ordinal)
            self._stats_column.append(self._columns.setdefault(column, len(self._columns)))

    def _schema_id(self, schema: pa.Schema, names: dict[str, str] | None, nested: NestedNames | None) -> int:
        given, (newest, number) = (schema, names, nested), self._newest
        if not newest or any(one is not other for one, other in zip(given, newest, strict=True)):
            key = (schema, None if names is None else tuple(names.items()), tuple((nested or {}).items()))
            number = self._schemas.setdefault(key, len(self._schemas))
            self._newest = given, number
        return number

    def result(self, **more: Any) -> TaskResult:
        stats = pa.table(
            {
                "file": array_of(self._stats_file, pa.int64()),
                "column": array_of(self._stats_column, pa.int32()),
                **to_columns(self._stats),
            },
            schema=FILE_STATS_SCHEMA,
        )
        return TaskResult(
            files=pa.table(
                [array_of([file.get(f.name) for file in self._files], f.type) for f in FILES_SCHEMA],
                schema=FILES_SCHEMA,
            ),
            schemas=[schema for schema, _, _ in self._schemas],
            names=[dict(names) for _, names, _ in self._schemas if names is not None],
            nested=[dict(nested) for _, names, nested in self._schemas if names is not None],
            stats=stats,
            stats_columns=list(self._columns),
            **more,
        )


# -- the task index file ----------------------------------------------------------------------------------------------


KEYS = KeyLayout([("file", 4), ("column", 4), ("row_group", 4)])
FINE_SCHEMA = pa.schema([pa.field("column", pa.string()), *STATS_FIELDS])
ROW_GROUPS_COLUMN = ""  # the path of the entries of a file's row groups themselves
_GROUP_ROWS_MAX = 256  # entries of files that share a group: one or two blocks


@dataclass(frozen=True)
class IndexPart:
    """A part of an index, which a task built over the files that it wrote.

    kind, columns    of the index; the columns are dotted paths
    encoding         how values are encoded; an index with another encoding cannot use the part
    numbers          the number in the run of each of the task's files, by ordinal; None for a file that is left out
    run              a run of the index with these numbers instead of file ids; None without entries
    is_permanent     runs of the index will reference the file of the part, so it stays
    stats            of statistics, which need no run: those of each of the task's files, by ordinal; None: of no row
    """

    kind: str
    columns: tuple[str, ...]
    encoding: tuple[str | None, ...]
    numbers: tuple[int | None, ...]
    run: Run | None
    is_permanent: bool = False
    stats: tuple[ColumnStats | None, ...] = ()

    def ids_of(self, numbers: np.ndarray, file_ids: np.ndarray) -> np.ndarray:
        """Return the ids of files (uint64 [n]) by their numbers. `file_ids`: of the task's files, by ordinal."""
        pairs = [(number, i) for number, i in zip(self.numbers, file_ids.tolist(), strict=True) if number is not None]
        own, ids = (np.array(part, dtype=np.uint64) for part in zip(*sorted(pairs), strict=True))
        return ids[np.searchsorted(own, numbers)]


def temporary_paths(results: Sequence[TaskResult]) -> list[str]:
    """Return the files of parts that are not needed after the commit was published or given up."""
    parts = [part for result in results if result.index is not None for part in result.index.parts]
    return [part.run.path for part in parts if part.run is not None and not part.is_permanent]


@dataclass
class TaskIndex:
    """Where the contents of a finished task index file are. `fine` (int64 [files, 2]: offset, length) is aligned with
    its files. `footers` are their packed footers, if kept; `parts` are parts of other indexes, in other files."""

    path: str
    fine: np.ndarray = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    parts: list[IndexPart] = field(default_factory=list)
    footers: list[bytes | None] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """Return the paths of the task index file and of the parts."""
        return [self.path, *(part.run.path for part in self.parts if part.run is not None)]


def path_mark(path: str) -> bytes:
    """Return 16 bytes that identify a data file: the BLAKE2b hash of its path."""
    import hashlib  # loads OpenSSL, which a look-up does not need

    return hashlib.blake2b(path.encode(), digest_size=16).digest()


def entries_by_path(entries: pa.Table) -> tuple[dict[bytes, int], np.ndarray]:
    """Return {the mark of a path: the ordinal of its file}, and the ordinal of each entry's file (uint32 [n]), for a
    range of fine statistics. Raise CorruptionError if two files have the same mark."""
    keys = KEYS.decode(entries.column("key"))
    is_group = to_numpy(pc.equal(entries.column("column"), string_scalar(ROW_GROUPS_COLUMN)))
    is_first = is_group & (keys["row_group"] == 0)
    marks = entries.column("min_bytes").filter(from_numpy(is_first)).to_pylist()
    ordinals = dict(zip(marks, keys["file"][is_first].tolist(), strict=True))
    if len(ordinals) != len(marks):
        raise CorruptionError("fine statistics contain a file twice: restore the index", check="fine statistics")
    return ordinals, keys["file"]


class TaskIndexWriter:
    """Writes a task index file, file by file. It is a context manager; an exception leaves no file."""

    def __init__(self, storage: Storage, path: str):
        from ...hfile_like import SortedFileWriter

        self._stack = ExitStack()
        self._sink = self._stack.enter_context(storage.create(path))
        # A reader of a group has no footer, and so no dictionary.
        self._writer = SortedFileWriter(
            self._sink, schema=FINE_SCHEMA, use="get", compression="zstd", templates=False, metas=written_as(path)
        )
        self._stack.enter_context(self._writer)
        self._index = TaskIndex(path)
        self._places: list[tuple[int, int]] = []  # offset and length, by file
        self._first = 0  # the first file whose entries wait for their group
        self._keys: list[tuple[int, int, int]] = []
        self._columns: list[str] = []
        self._rows: list[ColumnStats] = []

    def __enter__(self) -> TaskIndexWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def add_file(
        self,
        path: str,
        row_groups: Sequence[RowGroup],
        stats: dict[str, list[ColumnStats]],
        footer: bytes | None = None,
    ) -> int:
        """Write the fine statistics of one data file and return its ordinal. The commit keeps `footer`, which
        `packed_footer` returns."""
        sizes = [ColumnStats(value_count=g.row_count, compressed_bytes=g.size_bytes) for g in row_groups]
        if sizes:
            sizes[0] = sizes[0]._replace(lower=path_mark(path))
        columns = {ROW_GROUPS_COLUMN: sizes, **stats}
        ordinal = len(self._places)
        if len(self._rows) + len(columns) * len(row_groups) > _GROUP_ROWS_MAX:
            self._end_group()
        self._places.append((0, 0))
        for number, (column, parts) in enumerate(columns.items()):
            self._keys += [(ordinal, number, row_group) for row_group in range(len(parts))]
            self._columns += [column] * len(parts)
            self._rows += parts
        self._index.footers.append(footer)
        return ordinal

    def _end_group(self) -> None:
        """Write the entries that wait as one group."""
        if self._rows:
            file, column, row_group = np.array(self._keys, dtype=np.int64).T
            keys = KEYS.encode(file=file, column=column, row_group=row_group)
            columns = {"column": string_array(self._columns), **to_columns(self._rows)}
            self._writer.write(keys, pa.table(columns, schema=FINE_SCHEMA), copy=False)
            group = self._writer.end_group(str(self._first))
            for ordinal in np.unique(file).tolist():  # a file without row groups has no entries
                self._places[ordinal] = group.offset, group.length
        self._first = len(self._places)
        self._keys, self._columns, self._rows = [], [], []

    def finish(self) -> TaskIndex:
        """Close the file, which is then durable and complete, and return the locations of its parts."""
        self._end_group()
        self._stack.close()
        self._index.fine = np.array(self._places, dtype=np.int64).reshape(-1, 2)
        return self._index
