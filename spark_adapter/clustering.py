"""Clustering: files are rewritten so that similar rows are in the same files, and bounds can distinguish files.

It runs two jobs of Spark. The first samples the columns to cluster by: the driver computes the order of rows and where
to cut it into files (`engine.clustering`). The second reads the files, shuffles their rows and writes them again, with
all that the table's indexes keep of written rows. The driver then publishes one replace. It has the sample and the
names of files, never their rows. If anything fails before the commit, the table is unchanged; a clean removes what
tasks had written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame

from ..engine.choices import Curve
from ..engine.clustering import ORDERS, Placement, RowOrder, check_columns
from ..engine.open import open_table
from ..engine.progress import Progress, progress_function
from ..engine.rows_by_key.rewrite import OldFile, old_files, with_codec_of
from ..engine.scan.file_tasks import FileTask
from ..errors import CorruptionError, InvalidArgumentError, SchemaError
from .clustering_tasks import PIECES_SCHEMA, deal_rows, sample_rows, write_lane
from .columns import without_unknowns
from .jobs import RESULT_SCHEMA, batches_only, frame_of_parts, map_parts, run_frame
from .old_calendar import check_rewritable
from .sessions import read_where
from .shares import pack
from .spark_versions import slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..engine.indexes.task_result import TaskResult
    from ..engine.table import Table
    from ..engine.tasks.spec import TaskSpec

_SAMPLE_ROWS, _SAMPLE_ROWS_A_FILE, _SAMPLE_ROWS_MAX = 100_000, 200, 1_000_000
_BUCKET_ROWS_MIN, _BUCKET_ROWS_MAX = 1 << 10, 1 << 16
_BUCKET_BYTES = 16 << 20  # as stored: some times as much in memory
_PIECES_MAX = 1 << 12  # that a task deals its rows out to: more would each be small


@dataclass(frozen=True)
class Clustering:
    """The result of `cluster`.

    version         the version created, or the current one if no file was chosen
    curve, by       the order of the rows
    rows            how many were rewritten
    files_before, files_after    how many files contained them, and contain them now
    share_read      for each column of `by`, the share of the table's files that a look-up of one value reads by
                    bounds alone, before and after, 0 to 1 (`Table.layout`)
    """

    version: int
    curve: str
    by: tuple[str, ...]
    rows: int
    files_before: int
    files_after: int
    share_read: dict[str, tuple[float, float]]

    def __repr__(self) -> str:
        if not self.files_before:
            return f"<skipstone.Clustering version {self.version}: no files were chosen>"
        gains = (f"{name} {before:.1%} -> {after:.1%}" for name, (before, after) in self.share_read.items())
        return (
            f"<skipstone.Clustering version {self.version}: {self.rows:,} rows, {self.files_before:,} -> "
            f"{self.files_after:,} files, {self.curve}; files that a look-up reads by bounds: {', '.join(gains)}>"
        )


def cluster(
    spark: SparkSession,
    path: str | os.PathLike,
    by: str | Sequence[str],
    curve: Curve = "hilbert",
    where: object = None,
    *,
    file_rows: int | None = None,
    file_bytes: int | None = None,
    row_group_rows: int | None = None,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> Clustering:
    """Rewrite the files that can contain a row of `where`, clustered by some columns, and commit one replace.

    Rows stay in their partitions and keep all values; files keep their compression. The old files stay on storage for
    older versions, until a `clean` that deletes data. Files that others append concurrently stay as they are.

    All chosen files are rewritten, clustered or not, so a repeated call costs as much again. Choose new files by
    `where`, best by partitions: "month = 12".

    Args:
        path: the table's directory; executors must see it under the same name.
        by: columns, the most important first, without partition columns. A curve serves two or three columns well, and
            each column less the more there are.
        curve: "linear" (sorted by the first column, then by the second, ...), "zorder" or "hilbert" (near each other
            in all of the columns).
        where: as for `scan`; None for every file. A part of a Column or a text that is not understood excludes no file.
        file_rows, file_bytes: the approximate size of files; bytes by the present size of rows. A partition with fewer
            rows is one file.
        row_group_rows: the most rows of a row group, the least that readers skip.
        index_path, storage_options: as for `scan`.
        progress: called as f(step, done, total), or True for a bar on stderr.

    Raises:
        NotReadableError: a chosen file belongs to a file group, whose owner compacts it; has logs, or deletes that
        cannot be applied; or was overwritten since it was indexed.
        CommitConflictError: another writer removed one of the files concurrently.
        SchemaError: `by` names a column that does not exist, or whose type has no order. InvalidArgumentError: a
        partition column, an unknown curve, or a table that follows the log of another format. PredicateError: `where`
        cannot be read.
    """
    if curve not in ORDERS:
        raise InvalidArgumentError(f"curve= is one of {', '.join(ORDERS)}, not {curve!r}")
    if not hasattr(DataFrame, "repartitionById"):
        raise InvalidArgumentError('cluster() needs PySpark 4.1 or later: pip install "pyspark>=4.1"')
    report = progress_function(progress)
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        columns = _checked(by, table)
        node = read_where(spark, where, table.schema)
        if isinstance(where, Column | str):
            node = without_unknowns(node)  # type: ignore[arg-type]
        plan = table.scan(node)
        tasks = plan.planning.readable_tasks()
        before = {name: table.layout(name).share_read for name in columns}
        table.handle.check_latest()
        table.handle.check_owns_files()
        if not tasks:
            same = {name: (share, share) for name, share in before.items()}
            return Clustering(table.version, curve, columns, 0, 0, 0, same)
        files = old_files(plan.planning, tasks)
        check_rewritable(table.handle, tasks)
        with table.transaction() as tx:
            sizes = {"file_rows": file_rows, "file_bytes": file_bytes, "row_group_rows": row_group_rows}
            spec = with_codec_of(_with_sizes(tx.task_spec(), tasks, sizes), plan.planning.storage, tasks)
            written = _rewritten(spark, table, files, columns, curve, spec, report)
            for result in written:
                tx.add_task(result)
            tx.remove([task.path for task in tasks])
            rows = sum(sum(part.files.column("row_count").to_pylist()) for result in written for part in result)
            planned = sum(task.row_count for task in tasks)
            if planned != rows and all(task.is_exact for task in tasks):
                raise CorruptionError(
                    f"{len(tasks):,} files should contain {planned:,} rows, and {rows:,} were read and written; "
                    "nothing is committed. A row count that add_files() was given is wrong, or a disk is: see "
                    "verify(deep=True)"
                )
        count = sum(part.files.num_rows for result in written for part in result)
        gains = {name: (share, table.layout(name).share_read) for name, share in before.items()}
        return Clustering(table.version, curve, columns, rows, len(tasks), count, gains)


def _checked(by: str | Sequence[str], table: Table) -> tuple[str, ...]:
    columns = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, Sequence) else ()
    if not columns or len(set(columns)) < len(columns):
        raise InvalidArgumentError(f"by= is one column or more, each once, not {by!r}")
    for name in columns:
        if not isinstance(name, str) or table.schema.get_field_index(name) < 0:
            raise SchemaError(f"no column {name!r}; the table's columns are {', '.join(table.schema.names)}")
        if name in table.handle.instant.partitioning:
            raise InvalidArgumentError(f"{name} is a partition column: rows are never moved to another partition")
    check_columns(pa.schema([table.schema.field(name) for name in columns]))
    return columns


def _rewritten(
    spark: SparkSession,
    table: Table,
    files: Sequence[OldFile],
    by: tuple[str, ...],
    curve: Curve,
    spec: TaskSpec,
    progress: Progress | None,
) -> list[list[TaskResult]]:
    """The results of the tasks that write the rows of some files again, in the order of the rows."""
    texts = list(dict.fromkeys(file.partition for file in files))
    number_of = {file.task.path: texts.index(file.partition) for file in files}
    counts = np.zeros(len(texts), dtype=np.int64)
    for file in files:
        counts[number_of[file.task.path]] += file.task.row_count
    total = max(1, int(counts.sum()))
    # All rows of a file, whatever an index contains of the predicate.
    every = [replace(f.task, all_match=True, rows=None, rows_exact=False, fine=(), filters={}) for f in files]
    parts = [[(one, number_of[one.task.path]) for one in shares] for shares in pack(every, slots(spark))]

    rate = min(1.0, min(max(_SAMPLE_ROWS, _SAMPLE_ROWS_A_FILE * total // spec.file_rows), _SAMPLE_ROWS_MAX) / total)
    sample = partial(sample_rows, context=table.scan(None, by).planning.context, rate=rate)
    empty = pa.schema([(name, table.schema.field(name).type) for name in by]).empty_table()
    sampled: list[list[pa.Table]] = [[empty] for _ in texts]
    for found in map_parts(spark, sample, parts, step="sample, parts", progress=progress):
        for number, rows in found.items():
            sampled[number].append(rows)
    samples = [pa.concat_tables(tables) for tables in sampled]
    order = RowOrder(curve, pa.concat_tables(samples))

    fitting = int(_BUCKET_BYTES * total / max(1, sum(file.task.size_bytes for file in files)))
    bucket_rows = max(_BUCKET_ROWS_MIN, min(_BUCKET_ROWS_MAX, fitting), total // _PIECES_MAX)
    keys = {number: order.keys(rows) for number, rows in enumerate(samples)}
    placement = Placement(keys, counts.tolist(), spec.file_rows, bucket_rows)
    names = [name for name in table.schema.names if name not in table.handle.instant.partitioning]
    deal = partial(deal_rows, context=table.scan(None, names).planning.context, order=order, placement=placement)
    # A file ends where its range does, even if the range has more rows or bytes than the sample promised.
    spec = replace(spec, file_rows=2 * spec.file_rows, file_bytes=2 * spec.file_bytes)
    write = partial(write_lane, spec=spec, order=order, placement=placement, texts=texts)
    pieces = frame_of_parts(spark, parts).mapInArrow(batches_only(deal), PIECES_SCHEMA)
    lanes = pieces.repartitionById(placement.lane_count, "lane").sortWithinPartitions("bucket")
    rows = lanes.mapInArrow(batches_only(write), RESULT_SCHEMA)
    results = run_frame(spark, rows, placement.lane_count, step="files", progress=progress)
    return [result for _, result in sorted(results, key=lambda row: row[0])]


def _with_sizes(spec: TaskSpec, tasks: Sequence[FileTask], sizes: Mapping[str, int | None]) -> TaskSpec:
    """The spec with other sizes, as `TaskSpec.sized` has them; `file_rows` is what `file_bytes` come to, at the bytes
    that a row of these files takes now. Raises InvalidArgumentError for a size that is none."""
    spec = spec.sized(sizes)
    if sizes.get("file_bytes") is None:
        return spec
    row_bytes = sum(task.size_bytes for task in tasks) / max(1, sum(task.row_count for task in tasks))
    by_bytes = max(1, int(spec.file_bytes / max(row_bytes, 1e-9)))
    return replace(spec, file_rows=by_bytes if sizes.get("file_rows") is None else min(spec.file_rows, by_bytes))
