"""Statistics of an expression, which footers do not have: they are computed from rows, when files are written or later.

A writer's task computes them from the rows that it writes (`ExpressionPartSpec`). Files that no task wrote, and files
in which the expression fails, are holes until `refresh_index`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....errors import SchemaError
from ...handle import Handle
from ...parquet.column_stats import ColumnStats, combine, of_array
from ...state import IndexState
from ...state.manifest import BASE
from ...storage import Storage
from ..column_reader import ColumnReader, each_file, file_rows
from ..derived import Source
from ..kind import BuildContext, CommitContext, PartSpec
from ..task_result import AddedFiles, IndexPart, ResultBuilder
from .build import StatsPart

NAME = "stats"


def computed_part(handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> StatsPart:
    """Read the columns of an expression, and compute its statistics in each file. Those of logs are unknown. A file in
    which the expression fails is left out."""
    reader, (name,) = ColumnReader.of(handle.storage, handle.instant, index), handle.instant.names_of(index)
    computed: list[tuple[int, int, list[ColumnStats]]] = []

    def read(row: dict) -> tuple[int, list[ColumnStats]]:
        schema = -1 if row["schema_id"] is None else row["schema_id"]
        if row["kind"] != BASE:
            return schema, []
        with reader.open(row) as file:
            groups = [file.read(group)[0] for group in range(len(file.row_counts))]
        return schema, [stats for values in groups if (stats := of_array(values)) is not None]

    holes, remaining_ids = each_file(
        file_rows(files), job, f"stats({name})", read, lambda file_id, found: computed.append((file_id, *found))
    )
    return StatsPart(_added(name, computed), holes, remaining_ids)


def committed_part(index: IndexState, work: CommitContext) -> tuple[AddedFiles, list[int]] | None:
    """Return the statistics that the tasks of a commit computed, and the ids of the other added files. Return None if
    the index does not cover the commit: no task computed any, or the table's schema changed during the commit."""
    found = work.parts_of(index) if work.names_from.schema == work.after.schema else None
    if found is None:
        return None
    parts, holes = found
    schemas: dict[int, int] = {}
    for files in work.added:
        schemas.update(zip(files.ids.tolist(), files.schema_ids.tolist(), strict=True))
    (name,) = work.after.names_of(index)
    computed = [
        (file_id, schemas[file_id], [] if stats is None else [stats])
        for part, ids in parts
        for file_id, number, stats in zip(ids.tolist(), part.numbers, part.stats, strict=True)
        if number is not None
    ]
    return _added(name, computed), holes


def _added(name: str, computed: Sequence[tuple[int, int, list[ColumnStats]]]) -> AddedFiles:
    """Return files with known statistics of an expression, from their ids, schema ids, and statistics per row group."""
    built = ResultBuilder()
    for _, _, parts in computed:
        built.add(
            path="",
            partition="",
            size_bytes=0,
            modified_ns=None,
            etag=None,
            schema=pa.schema([]),
            row_groups=[],
            stats={name: parts} if parts else {},
        )
    ids = np.array([file_id for file_id, _, _ in computed], dtype=np.uint64)
    return AddedFiles(built.result(), ids, np.array([schema for _, schema, _ in computed], dtype=np.int64))


# -- in a writer's task -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpressionPartSpec(PartSpec):
    """An expression whose statistics a task computes, under its name in the index."""

    name: str
    source: Source

    def start(self) -> ExpressionPartBuilder:
        return ExpressionPartBuilder(self)


class ExpressionPartBuilder:
    """Computes the statistics of an expression in the files of a task."""

    def __init__(self, spec: ExpressionPartSpec):
        self._spec = spec
        self._stats: dict[int, list[ColumnStats]] = {}
        self._left_out: set[int] = set()

    def add(self, number: int, row_group: int, first_row: int, rows: pa.Table) -> None:
        try:
            stats = of_array(self._spec.source.values(rows))
        except SchemaError:  # the expression fails
            stats = None
        if stats is None:
            self._left_out.add(number)
        else:
            self._stats.setdefault(number, []).append(stats)

    def end_file(self, number: int) -> None:
        pass

    def finish(self, storage: Storage, path: str, numbers: Sequence[int]) -> IndexPart:
        kept = tuple(None if number in self._left_out else number for number in numbers)
        stats = tuple(combine(self._stats[number]) if number in self._stats else None for number in numbers)
        return IndexPart(NAME, (self._spec.name,), (), kept, None, stats=stats)

    def close(self) -> None:
        self._stats = {}
