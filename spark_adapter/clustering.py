"""Clustering: files rewritten so that rows alike in some columns lie together, and bounds can tell files apart.

    sks.cluster(spark, "lake/flights", by=["origin", "dep_delay"], curve="hilbert", where="year = 2013")

It runs two jobs of Spark. The first samples the columns to cluster by, from which the driver learns the order of rows
and where to cut it into files (`engine.clustering`). The second reads the files, shuffles their rows and writes them
anew, with all that the table's indexes keep of written rows. The driver then publishes one replace. It holds the sample
and the names of files, never their rows.

Files are rewritten whole, and rows stay in their partitions. Whatever fails before the commit leaves the table as it
was; what tasks had written by then is removed by a clean.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame

from ..engine.choices import Curve
from ..engine.clustering import ORDERS, Keys, Placement, RowOrder, check_columns
from ..engine.open import open_table
from ..engine.progress import Progress, progress_function
from ..engine.rows_by_key.rewrite import OldFile, with_codec_of
from ..engine.scan.file_tasks import FileTask
from ..errors import CorruptionError, InvalidArgumentError, SchemaError
from .clustering_tasks import PIECES_SCHEMA, DealRows, FileShare, SampleRows, WriteRows
from .columns import without_unknowns
from .jobs import RESULT_SCHEMA, frame_of_parts, map_parts, run_frame
from .old_calendar import rewritable
from .sessions import read_where
from .shares import pack
from .spark_versions import check_spark, slots

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
    check_spark("4.1", "cluster()")
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
        chosen = rewritable(table, plan.planning, tasks)
        with table.transaction() as tx:
            sizes = {"file_rows": file_rows, "file_bytes": file_bytes, "row_group_rows": row_group_rows}
            spec = with_codec_of(_with_sizes(tx.task_spec(), tasks, sizes), plan.planning.storage, tasks)
            work = _Rewrite(spark, table, chosen, columns, curve, spec, report)
            order, keys = work.sample()
            written = work.write(order, keys)
            for result in written:
                tx.add_task(result)
            tx.remove([task.path for task in tasks])
            _check_rows(tasks, written)
        files = sum(part.files.num_rows for result in written for part in result)
        rows = _rows_in(written)
        gains = {name: (share, table.layout(name).share_read) for name, share in before.items()}
        return Clustering(table.version, curve, columns, rows, len(tasks), files, gains)


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


class _Rewrite:
    """The two jobs, of one set of files."""

    def __init__(
        self,
        spark: SparkSession,
        table: Table,
        files: Sequence[OldFile],
        columns: tuple[str, ...],
        curve: str,
        spec: TaskSpec,
        progress: Progress | None,
    ):
        self._spark, self._columns, self._curve, self._spec, self._progress = spark, columns, curve, spec, progress
        names = [name for name in table.schema.names if name not in table.handle.instant.partitioning]
        self._whole, self._sampled = (table.scan(None, read).planning.context for read in (names, columns))
        self._empty = pa.schema([(name, table.schema.field(name).type) for name in columns]).empty_table()
        tasks, texts = [file.task for file in files], {file.task.path: file.partition for file in files}
        numbers: dict[str, int] = {}
        for text in texts.values():
            numbers.setdefault(text, len(numbers))
        self._rows = np.zeros(len(numbers), dtype=np.int64)
        for task in tasks:
            self._rows[numbers[texts[task.path]]] += task.row_count
        self._bytes = sum(task.size_bytes for task in tasks)
        # All rows of a file, whatever an index knows of the predicate.
        whole = [replace(task, all_match=True, rows=None, rows_exact=False, fine=(), filters={}) for task in tasks]
        self._parts = [
            [FileShare(share, numbers[texts[share.task.path]], texts[share.task.path]) for share in shares]
            for shares in pack(whole, slots(spark))
        ]

    def sample(self) -> tuple[RowOrder, dict[int, Keys]]:
        """The order of rows, and the keys of sampled ones by partition."""
        total = max(1, int(self._rows.sum()))
        rows = max(_SAMPLE_ROWS, _SAMPLE_ROWS_A_FILE * total // self._spec.file_rows)
        work = SampleRows(self._sampled, min(1.0, min(rows, _SAMPLE_ROWS_MAX) / total))
        sampled = map_parts(self._spark, work, self._parts, step="sample, parts", progress=self._progress)
        tables: dict[int, list[pa.Table]] = {number: [self._empty] for number in range(len(self._rows))}
        for part in sampled:
            for number, sample in part.items():
                tables[number].append(sample)
        samples = {number: pa.concat_tables(parts) for number, parts in tables.items()}
        order = RowOrder(self._curve, pa.concat_tables(samples.values()))
        return order, {number: order.keys(sample) for number, sample in samples.items()}

    def write(self, order: RowOrder, keys: Mapping[int, Keys]) -> list[list[TaskResult]]:
        """The results of the writing tasks, in the order of the rows."""
        files = max(1, round(int(self._rows.sum()) / self._spec.file_rows))
        placement = Placement(keys, self._rows.tolist(), self._spec.file_rows, self._bucket_rows(files))
        deal = DealRows(self._whole, order, placement)
        # A file ends where its range does, even if the range holds more rows or bytes than the sample promised.
        spec = replace(self._spec, file_rows=2 * self._spec.file_rows, file_bytes=2 * self._spec.file_bytes)
        write = WriteRows(spec, order)
        lanes = placement.lane_count
        frame = _shuffled(deal, write, lanes, frame_of_parts(self._spark, self._parts))
        rows = run_frame(self._spark, frame, lanes, step="files", progress=self._progress)
        return [result for _, result in sorted(rows, key=lambda row: row[0])]

    def _bucket_rows(self, files: int) -> int:
        row_bytes = self._bytes / max(1, int(self._rows.sum()))
        fitting = int(_BUCKET_BYTES / max(row_bytes, 1e-9))
        rows = max(_BUCKET_ROWS_MIN, min(_BUCKET_ROWS_MAX, fitting))
        return max(rows, files * self._spec.file_rows // _PIECES_MAX)


def _shuffled(deal: DealRows, write: WriteRows, lanes: int, shares: DataFrame) -> DataFrame:
    pieces = shares.mapInArrow(deal, PIECES_SCHEMA)
    return pieces.repartitionById(lanes, "lane").sortWithinPartitions("bucket").mapInArrow(write, RESULT_SCHEMA)


def _rows_in(written: Sequence[Sequence[TaskResult]]) -> int:
    return sum(sum(part.files.column("row_count").to_pylist()) for result in written for part in result)


def _check_rows(tasks: Sequence[FileTask], written: Sequence[Sequence[TaskResult]]) -> None:
    """Raises CorruptionError where not all rows were written: better no commit than one that loses some."""
    planned, rows = sum(task.row_count for task in tasks), _rows_in(written)
    if planned != rows and all(task.is_exact for task in tasks):
        raise CorruptionError(
            f"{len(tasks):,} files should contain {planned:,} rows, and {rows:,} were read and written; nothing is "
            "committed. A row count that add_files() was given is wrong, or a disk is: see verify(deep=True)"
        )


# -- the files that it writes -----------------------------------------------------------------------------------------


def _with_sizes(spec: TaskSpec, tasks: Sequence[FileTask], sizes: Mapping[str, int | None]) -> TaskSpec:
    """The spec with other sizes, as `TaskSpec.sized` has them; `file_rows` is what `file_bytes` come to, at the bytes
    that a row of these files takes now. Raises InvalidArgumentError for a size that is none."""
    spec = spec.sized(sizes)
    if sizes.get("file_bytes") is None:
        return spec
    row_bytes = sum(task.size_bytes for task in tasks) / max(1, sum(task.row_count for task in tasks))
    by_bytes = max(1, int(spec.file_bytes / max(row_bytes, 1e-9)))
    return replace(spec, file_rows=by_bytes if sizes.get("file_rows") is None else min(spec.file_rows, by_bytes))
