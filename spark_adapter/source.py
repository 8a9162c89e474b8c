"""The data source "skipstone": loads are planned on the driver, saves are committed there.

PySpark makes the source in one process, plans in another and reads in more, passing pickles on. So the version is
pinned when the source is made, and the plan made when the reader is pickled, before `partitions()` runs: what is common
to all partitions travels in the reader. Each process imports what it needs. `pushFilters` is left out: see the package.

A save: each task writes files and their task index, and the driver commits them in one version. Spark creates the
writer in one process, runs it in executors, and commits in a third; none lives as long as the save. So its transaction
is a distributed one (`engine.commit.distributed`), from the latest version on. Spark passes the commit one message per
partition, even if a task was retried or ran twice. Messages use Spark's channel, not storage.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from ..errors import CommitConflictError, InvalidArgumentError, NotATableError
from .options import OVERWRITE_MODE, READ_VERSION, Request, WriteRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ..engine.commit.distributed import DistributedTransaction
    from ..engine.indexes.task_result import TaskResult
    from ..engine.scan.file_tasks import ReadContext
    from ..engine.table import Table
    from ..engine.tasks.spec import TaskSpec

_SESSION_MODE = f"spark.sql.sources.{OVERWRITE_MODE}"


class SkipstoneSource(DataSource):
    """`spark.read.format("skipstone")`, `df.write.format("skipstone")`. Its options are those of `options`.

    Without option `version` the latest is pinned here: Spark makes the source at load(), but, if the user gives a
    schema, only when it is first read. `scan` names the version.
    """

    def __init__(self, options: dict[str, str]):
        super().__init__(options)
        self._request: Request | None = None
        try:
            self._request = pinned(Request.from_options(options))
        except (InvalidArgumentError, NotATableError) as error:
            self._refusal = error  # of a load only: a save has other options, and may make the table

    @classmethod
    def name(cls) -> str:
        return "skipstone"

    @property
    def request(self) -> Request:
        """The load, at the version that was requested, or pinned."""
        if self._request is None:
            raise self._refusal
        return self._request

    def schema(self) -> StructType:
        """The columns of the pinned version. Raises SchemaError for one that Spark has no type for."""
        from .wire_types import spark_schema, wire_schema

        with self.request.open() as table:
            return spark_schema(wire_schema(table.schema))

    def reader(self, schema: StructType) -> SkipstoneReader:
        return SkipstoneReader(self.request, schema)

    def writer(self, schema: StructType, overwrite: bool) -> SkipstoneWriter:
        """Opens the table at its latest version, or makes it; raises before any task runs if the save must fail."""
        return writer_of(WriteRequest.from_options(self.options), schema, overwrite)


class FilePartition(InputPartition):
    """What one task of Spark reads: shares of files, or slices that the reader of another format merges, packed."""

    def __init__(self, shares: bytes | None = None, slices: bytes | None = None):
        super().__init__(None)
        self.shares, self.slices = shares, slices


@dataclass(frozen=True)
class _Reading:
    """What every task of a load shares: what files are read with, the types to yield, how shares are packed."""

    context: ReadContext
    wire: pa.Schema
    shares: pa.Schema


class SkipstoneReader(DataSourceReader):
    """Reads the columns that a Spark schema names. Spark pickles it once a load, for every task, and asks for the
    partitions then: so the plan is made when it is pickled, and what is common to all partitions travels once."""

    def __init__(self, request: Request, schema: StructType):
        self._request, self._schema = request, schema
        self._reading: _Reading | None = None
        self._partitions: list[InputPartition] | None = None

    def __getstate__(self) -> dict[str, Any]:
        with contextlib.suppress(Exception):  # `partitions` raises it, where Spark shows it
            self.partitions()
        return {**self.__dict__, "_partitions": None}

    def partitions(self) -> list[InputPartition]:
        """Runs on the driver: the files that may contain a match, packed. One empty partition if there are none."""
        if self._partitions is None:
            self._partitions = self._planned()
        return self._partitions

    def _planned(self) -> list[InputPartition]:
        from ..engine.scan.planned_rows import to_merge
        from .columns import where_node, where_of
        from .shares import cut_of, packed, packed_slices, share_schema
        from .wire_types import check_spark_schema, wire_schema

        with self._request.open() as table:
            where = where_node(where_of(self._request), table.schema)
            plan = table.scan(where, self._schema.names, mode=self._request.mode)
            wire = wire_schema(table.schema, plan.columns)
            check_spark_schema(self._schema, wire)
            planning, parallelism = plan.planning.for_task_rows(), self._request.parallelism or os.cpu_count() or 1
            if not planning.pruned.units.readable.all():  # slices are merged by their files' paths
                planning = plan.planning
            planning.check_readable(~to_merge(planning))
            planning.check_evaluable()
            shares = packed(planning, cut_of(planning, parallelism))
            partitions: list[InputPartition] = [FilePartition(data) for data in shares]
            partitions += [FilePartition(slices=data) for data in packed_slices(planning, parallelism)]
            context = replace(planning.context, deletes={})  # travel with the shares
            self._reading = _Reading(context, wire, share_schema(planning))
            return partitions or [FilePartition()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in an executor."""
        from .shares import rows_of_shares, rows_of_slices, unpacked
        from .wire_types import wire_batches

        assert isinstance(partition, FilePartition) and self._reading is not None
        if partition.slices is not None:
            with self._request.open() as table:
                for path, rows in rows_of_slices(self._reading.context, partition.slices, table.handle):
                    yield from wire_batches(rows, self._reading.wire, path)
        if partition.shares is None:
            return
        shares, deleted = unpacked(partition.shares, self._reading.shares)
        for path, rows in rows_of_shares(replace(self._reading.context, deletes=deleted), shares):
            yield from wire_batches(rows, self._reading.wire, path)


def load(spark: SparkSession, request: Request, schema: StructType) -> DataFrame:
    """The rows of a request that names its version, in the columns of a schema."""
    return spark.read.format(SkipstoneSource.name()).schema(schema).options(**request.to_options()).load()


def pinned(request: Request) -> Request:
    """The same load with its version: the one that it names, else the latest."""
    from ..engine.open import open_table

    if request.version is not None:
        return request
    opened = open_table(request.path, index_path=request.index_path, storage_options=request.storage_options)
    with opened as table:
        return replace(request, version=table.version, log_position=table.handle.log_position)


# -- saves ------------------------------------------------------------------------------------------------------------


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task wrote. `is_dynamic`: its session's mode of overwriting, which only tasks can read."""

    results: list[TaskResult]
    is_dynamic: bool


class SkipstoneWriter(DataSourceArrowWriter):
    """Writes rows into one transaction. Small: it is pickled into every task."""

    def __init__(
        self,
        work: DistributedTransaction,
        spec: TaskSpec,
        names: Sequence[str],
        overwrites: bool,
        request: WriteRequest,
    ):
        self._work, self._spec, self._names = work, spec, list(names)
        self._overwrites, self._is_dynamic, self._read_version = overwrites, request.is_dynamic, request.read_version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Runs in an executor. On an exception what was written is removed."""
        from ..engine.tasks.writer import TaskWriter
        from .wire_types import gathered, to_table_types

        tables = gathered(iterator)
        first = next(tables, None)
        if first is None:
            return TaskMessage([], _session_is_dynamic())
        with TaskWriter(self._spec) as task:
            for rows in itertools.chain([first], tables):
                task.write(to_table_types(rows, self._names, self._spec.schema))
        return TaskMessage(task.result, _session_is_dynamic())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs on the driver, when every task succeeded. Raises CommitConflictError if another writer removed a
        file that this overwrites, or changed what it overwrites since that was read; or the transaction was given up.
        """
        received = _received(messages)
        if len(received) < len(messages):
            raise CommitConflictError("Spark lost the message of a task: nothing is committed; save again")
        is_dynamic = self._is_dynamic
        if is_dynamic is None:
            is_dynamic = any(message.is_dynamic for message in received)
        with self._work.resume() as tx:
            for message in received:
                tx.add_task(message.results)
            if self._overwrites:
                tx.overwrite("written" if is_dynamic else "all", read_version=self._read_version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs on the driver, when the job or its commit failed."""
        self._work.abort([result for message in _received(messages) for result in message.results])


def writer_of(request: WriteRequest, schema: StructType, overwrites: bool) -> SkipstoneWriter:
    """Return the writer of a DataFrame's rows into a table, which is created if missing.

    Raises SchemaError if the table cannot contain such columns; InvalidArgumentError for a table that follows
    another format's log, and for a directory of Parquet files without an index.
    """
    from .wire_types import arrow_schema, check_incoming, names_in

    rows = arrow_schema(schema)
    if request.read_version is not None and not overwrites:
        raise InvalidArgumentError(
            f'option {READ_VERSION} is for mode("overwrite"): what is appended conflicts with none'
        )
    with _open_or_create(request, rows) as table:
        if request.partitioning is not None and request.partitioning != table.handle.instant.partitioning:
            columns = ", ".join(table.handle.instant.partitioning) or "no column"
            raise InvalidArgumentError(
                f"{table.location} is partitioned by {columns}, and option partitioning says "
                f"{', '.join(request.partitioning) or 'no column'}; leave it out"
            )
        names = names_in(table.schema, rows.names)
        check_incoming(rows, names, table.schema)
        work = table.distributed_transaction(request.key)
        return SkipstoneWriter(work, work.task_spec(**request.sizes), names, overwrites, request)


def _open_or_create(request: WriteRequest, rows: pa.Schema) -> Table:
    from ..engine.open import open_table

    storage: dict[str, Any] = {"index_path": request.index_path, "storage_options": request.storage_options}
    try:
        return open_table(request.path, **storage)
    except NotATableError:
        _check_new(request)
    from ..engine.create import create

    try:
        return create(request.path, schema=rows, partitioning=list(request.partitioning or ()), files=[], **storage)
    except (InvalidArgumentError, CommitConflictError):  # another save may have created it concurrently
        return open_table(request.path, **storage)


def _check_new(request: WriteRequest) -> None:
    """Raise InvalidArgumentError if the folder contains Parquet files that would not be in the new table."""
    from ..engine.lakes.directory import list_parquet
    from ..engine.storage import open_storages

    listed = list_parquet(*open_storages(request.path, request.index_path, request.storage_options))
    if listed.num_rows:
        raise InvalidArgumentError(
            f"{request.path} contains Parquet files ({listed.column('path')[0].as_py()}, ...) and no index; "
            f"create one with `skipstone create {request.path}`, or sks.create(), and save again"
        )


def _received(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [message for message in messages if isinstance(message, TaskMessage)]


def _session_is_dynamic() -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    mode = None if context is None else context.getLocalProperty(_SESSION_MODE)
    return mode is not None and mode.lower() == "dynamic"
