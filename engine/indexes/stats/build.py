"""Build statistics of columns over existing files, from their footers."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....base.arrays import to_numpy
from ...parquet.footers import FILE_ERRORS, Footer, indexed_entry, read_footer
from ...parquet.leaves import leaf_types
from ...state import Coverage, IndexState, Instant, Run
from ...state.lsm import write_runs
from ...state.manifest import BASE
from ...state.paths import run_path, task_path
from ...state.publishing import UnpublishedFiles
from ..column_reader import each_file, file_rows
from ..kind import BuildContext, BuildResult
from ..task_result import FILE_STATS_SCHEMA, AddedFiles, ResultBuilder, TaskIndexWriter, TaskResult
from . import format as stats
from .rows import stat_rows

if TYPE_CHECKING:
    from ...handle import Handle

_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class StatsPart:
    """The statistics of an index's columns in some files, and the ids of files that could not be read."""

    added: AddedFiles
    unreadable_ids: list[int]
    remaining_ids: Sequence[int] = ()

    @property
    def paths(self) -> list[str]:
        return [] if self.added.result.index is None else self.added.result.index.paths


def join_parts(handle: Handle, index: IndexState, parts: Sequence[StatsPart], job: BuildContext) -> BuildResult:
    """Return runs over the parts of `read_part`, with the aggregates of partitions, over the files of all parts."""
    unreadable_ids = [file_id for part in parts for file_id in part.unreadable_ids]
    added = [part.added for part in parts if len(part.added.ids)]
    for part in parts:
        if not len(part.added.ids):
            for path in part.paths:
                handle.index_storage.delete(path)
    if not added:
        return BuildResult((), unreadable_ids)
    return BuildResult(_written(handle, handle.instant, index, added, job.transaction, job.leftovers), unreadable_ids)


def stats_of_new_columns(
    handle: Handle, altered: Instant, index: IndexState, transaction: str, leftovers: UnpublishedFiles
) -> IndexState:
    """Return the index for the new columns of `altered`. It has an entry for each live file, which lacks the column."""
    files = handle.committed.files()
    coverage = Coverage.up_to(handle.version)
    built = replace(index, coverage=coverage)
    if not files.num_rows:
        return built
    nothing = TaskResult(files=files, schemas=[], stats=FILE_STATS_SCHEMA.empty_table(), stats_columns=[])
    ids, schema_ids = (to_numpy(files.column(name)) for name in ("file_id", "schema_id"))
    added = AddedFiles(nothing, ids, schema_ids.astype(np.int64))
    return replace(built, runs=_written(handle, altered, index, [added], transaction, leftovers))


def _written(
    handle: Handle,
    instant: Instant,
    index: IndexState,
    added: Sequence[AddedFiles],
    transaction: str,
    leftovers: UnpublishedFiles,
) -> tuple[Run, ...]:
    removed = handle.committed.files().slice(0, 0)
    has_fine = any(files.result.index is not None for files in added)
    entries = stat_rows(instant, index, handle.readers, added, removed, has_fine=has_fine)

    def path_of(shard: int) -> str:
        path = run_path(transaction, f"s{index.columns[0]}-{shard}")
        leftovers.add(handle.index_storage, path)
        return path

    form = stats.run_form(index.options)
    return write_runs(handle.index_storage, path_of, entries, (1, handle.version), form)


def read_part(handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> StatsPart:
    """Read the footers of files. Statistics of logs, and of declared files that do not exist, are unknown."""
    built, ids, schema_ids, schemas = ResultBuilder(), list[int](), list[int](), handle.instant.file_schemas
    leaves = [{p for c in index.columns if (p := schema.path_of(c)) is not None} for schema in schemas]
    path = task_path(job.transaction, f"stats{index.columns[0]}{f'-{job.part}' if job.part else ''}")
    job.leftovers.add(handle.index_storage, path)

    def read(row: dict[str, Any]) -> tuple[dict[str, Any], Footer]:
        schema, nothing = schemas[row["schema_id"]], Footer(pa.schema([]), [], {})
        if row["kind"] != BASE:
            return row, nothing
        try:
            footer = read_footer(
                handle.storage, indexed_entry(handle.storage, row), leaves[row["schema_id"]].__contains__
            )
        except FILE_ERRORS:
            if schema.is_declared:
                return row, nothing
            raise
        if schema.is_declared:  # only bounds in the declared types are valid
            declared, actual = leaf_types(schema.schema), leaf_types(footer.schema)
            agree = {p: s for p, s in footer.stats.items() if declared.get(p) == actual.get(p)}
            footer = replace(footer, stats=agree)
        return row, footer

    with TaskIndexWriter(handle.index_storage, path) as fine:

        def take(file_id: int, found: tuple[dict[str, Any], Footer]) -> None:
            row, footer = found
            fine.add_file(row["path"], footer.row_groups, footer.stats, footer.packed)
            identity = {name: row[name] for name in ("path", "size_bytes", "modified_ns", "etag")}
            contents = {"schema": footer.schema, "row_groups": footer.row_groups, "stats": footer.stats}
            built.add(partition="", **identity, **contents)
            ids.append(file_id)
            schema_ids.append(row["schema_id"])

        # All files in one part: aggregates count the files that they cover.
        holes, _ = each_file(file_rows(files), replace(job, publish_s=math.inf), "stats", read, take, _THREADS)
        finished = fine.finish()
    result = built.result(index=finished)
    added = AddedFiles(result, np.array(ids, dtype=np.uint64), np.array(schema_ids, dtype=np.int64))
    return StatsPart(added, holes)
