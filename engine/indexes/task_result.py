"""What a task hands to the commit: small, picklable, in local ordinals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, to_numpy
from ..parquet.column_stats import STATS_FIELDS, ColumnStats, combine, to_columns
from ..parquet.footer_bytes import RowGroup
from ..state.manifest import BASE, FILES_SCHEMA
from .task_index import TaskIndex

FILE_STATS_SCHEMA = pa.schema([pa.field("file", pa.int64()), pa.field("column", pa.int32()), *STATS_FIELDS])


@dataclass
class TaskResult:
    """The files of one task and what is known of them.

    files           one row a file (FILES_SCHEMA); `schema_id` is a position in `schemas`
    schemas         the physical schemas met (None, as schema_id null, where a file's is not known)
    stats           one row a file and column (FILE_STATS_SCHEMA); `column` is a position in `stats_columns`
    index           the task index file, or None where there is nothing fine
    written         files of `files` that this task wrote itself: an abort removes them
    is_partition_told    True where partitions were given, and paths need not say them
    names           what the columns of each of `schemas` are called in the table, by their names in the file; empty
                    where they are called alike
    told_names      {name in the table: name in the file} of files whose schema is not known, where they differ
    task            whose marker stands until the commit takes this over; None where the task holds none
    """

    files: pa.Table
    schemas: list[pa.Schema]
    stats: pa.Table
    stats_columns: list[str]
    index: TaskIndex | None = None
    written: list[str] = field(default_factory=list)
    is_partition_told: bool = False
    pending: list[dict] = field(default_factory=list)
    names: list[dict[str, str]] = field(default_factory=list)
    told_names: dict[str, str] = field(default_factory=dict)
    task: str | None = None

    def schema_counts(self) -> list[tuple[pa.Schema, int]]:
        """The physical schemas that files have, each with how many."""
        ids, counts = np.unique(to_numpy(self.files.column("schema_id").drop_null()), return_counts=True)
        return [(self.schemas[i], count) for i, count in zip(ids.tolist(), counts.tolist(), strict=True)]

    def without(self, dropped: np.ndarray) -> TaskResult:
        """The same without some files (bool [files])."""
        place = np.cumsum(~dropped) - 1  # of each file among those that stay
        file = to_numpy(self.stats.column("file"))
        stays = ~dropped[file]
        stats = self.stats.filter(from_numpy(stays)).set_column(0, "file", from_numpy(place[file[stays]]))
        index = None if self.index is None else replace(self.index, fine=self.index.fine[~dropped])
        files = self.files.filter(from_numpy(~dropped))
        ids = files.column("schema_id")
        used = ids.drop_null().unique().sort().to_pylist()  # a schema that no file has is nobody's
        at = files.schema.get_field_index("schema_id")
        files = files.set_column(at, "schema_id", pc.index_in(ids, value_set=pa.array(used, pa.int32())))
        schemas, names = [self.schemas[i] for i in used], [self.names[i] for i in used] if self.names else []
        return replace(self, files=files, stats=stats, index=index, schemas=schemas, names=names)


class ResultBuilder:
    """Gathers files one by one; rows of statistics become arrays at the end."""

    def __init__(self) -> None:
        self._files: list[dict] = []
        self._schemas: dict[tuple[pa.Schema, tuple | None], int] = {}
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
        of_slice: Mapping[str, str | None] | None = None,
    ) -> None:
        """One base file whose footer, or whose rows, we have seen: its counts are exact, unless `deletes` of a log take
        rows out of it. `names`: what its columns are called in the table; `of_slice`: its file group, slice, commit."""
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
                "schema_id": self._schemas.setdefault(
                    (schema, None if names is None else tuple(names.items())), len(self._schemas)
                ),
                **(of_slice or {}),
            }
        )
        for column, parts in stats.items():
            self._stats.append(combine(parts))
            self._stats_file.append(ordinal)
            self._stats_column.append(self._columns.setdefault(column, len(self._columns)))

    def result(self, **more: Any) -> TaskResult:
        stats = pa.table(
            {
                "file": pa.array(np.array(self._stats_file, dtype=np.int64)),
                "column": pa.array(np.array(self._stats_column, dtype=np.int32)),
                **to_columns(self._stats),
            },
            schema=FILE_STATS_SCHEMA,
        )
        return TaskResult(
            files=pa.Table.from_pylist(self._files, schema=FILES_SCHEMA),
            schemas=[schema for schema, _ in self._schemas],
            names=[dict(names) for _, names in self._schemas if names is not None],
            stats=stats,
            stats_columns=list(self._columns),
            **more,
        )
