"""`df.write.format("skipstone")`: each task writes files and their task index, the driver commits them at once.

Spark makes the writer in one process, runs it in executors, and commits in a third process, none of which lives in
between; so the transaction is a distributed one (`engine.commit.distributed`). Its version is the latest when the save
begins. Spark tells the commit which tasks count: one message a partition, whatever was tried again or ran twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ..errors import CommitConflictError, InvalidArgumentError, NotATableError
from .write_request import OVERWRITE_MODE, READ_VERSION, WriteRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ..engine.commit.distributed import DistributedTransaction
    from ..engine.indexes.task_result import TaskResult
    from ..engine.table import Table
    from ..engine.tasks.spec import TaskSpec

_SESSION_MODE = f"spark.sql.sources.{OVERWRITE_MODE}"


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task made. `is_dynamic`: what its session says of overwriting, which only tasks are shown."""

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
        from .incoming import gathered, to_table_types

        tables = gathered(iterator)
        first = next(tables, None)
        if first is None:
            return TaskMessage([], _session_is_dynamic())
        with TaskWriter(self._spec) as task:
            for rows in itertools.chain([first], tables):
                task.write(to_table_types(rows, self._names, self._spec.schema))
        return TaskMessage(task.result, _session_is_dynamic())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs on the driver, when every task succeeded. Raises CommitConflictError where another writer took out a
        file that this overwrites, or changed, since it was read, what this overwrites; or the transaction was given
        up."""
        told = _told(messages)
        if len(told) < len(messages):
            raise CommitConflictError("Spark lost what a task told of its files: nothing is committed; save again")
        is_dynamic = self._is_dynamic
        if is_dynamic is None:
            is_dynamic = any(message.is_dynamic for message in told)
        with self._work.resume() as tx:
            for message in told:
                tx.add_task(message.results)
            if self._overwrites:
                tx.overwrite("written" if is_dynamic else "all", read_version=self._read_version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs on the driver, when the job or its commit failed."""
        self._work.abort([result for message in _told(messages) for result in message.results])


def writer_of(request: WriteRequest, schema: StructType, overwrites: bool) -> SkipstoneWriter:
    """The writer of a DataFrame's rows into a table, which is made where nothing is.

    Raises SchemaError where rows of such columns cannot go into the table; InvalidArgumentError for a table of another
    format's log, and for a directory of Parquet files that no index stands beside.
    """
    from .incoming import arrow_schema, check_incoming, names_in

    rows = arrow_schema(schema)
    with _opened(request, rows) as table:
        if request.partitioning is not None and request.partitioning != table.instant.partitioning:
            told = ", ".join(table.instant.partitioning) or "no column"
            raise InvalidArgumentError(
                f"{table.location} is partitioned by {told}, and option partitioning says "
                f"{', '.join(request.partitioning) or 'no column'}; leave it out"
            )
        names = names_in(table.schema, rows.names)
        check_incoming(rows, names, table.schema)
        work = table.distributed_transaction(request.key)
        _check_read(table, request, overwrites)
        return SkipstoneWriter(work, work.task_spec(**request.sizes), names, overwrites, request)


def _check_read(table: Table, request: WriteRequest, overwrites: bool) -> None:
    """Raises, before any task runs, what the commit would raise for the version that was read, as far as it is known:
    which partitions get rows is not, nor whether this is a retry of a key."""
    from ..engine.commit.overwriting import check_unchanged, read_instant
    from ..engine.state.snapshot import Snapshot

    if request.read_version is None:
        return
    if not overwrites:
        raise InvalidArgumentError(
            f'option {READ_VERSION} is for mode("overwrite"): what is appended conflicts with none'
        )
    read = read_instant(table.timeline, table.instant, request.read_version)
    if request.is_dynamic is False and request.key is None:
        check_unchanged(Snapshot(read, table.readers), table.snapshot, None)


def _opened(request: WriteRequest, rows: pa.Schema) -> Table:
    from ..engine.open import open_table

    storage: dict[str, Any] = {"index_path": request.index_path, "storage_options": request.storage_options}
    try:
        return open_table(request.path, **storage)
    except NotATableError:
        _check_new(request)
    from ..engine.create import create

    try:
        return create(request.path, schema=rows, partitioning=list(request.partitioning or ()), files=[], **storage)
    except (InvalidArgumentError, CommitConflictError) as error:
        try:  # another save made it meanwhile
            return open_table(request.path, **storage)
        except NotATableError:
            raise error from None


def _check_new(request: WriteRequest) -> None:
    """Raises InvalidArgumentError where Parquet files lie that a new table would not know of."""
    from ..engine.lakes.directory import list_parquet
    from ..engine.storage import open_storages

    found = list_parquet(*open_storages(request.path, request.index_path, request.storage_options))
    if found.num_rows:
        raise InvalidArgumentError(
            f"{request.path} holds Parquet files ({found.column('path')[0].as_py()}, ...) and no index; make one with "
            f"`skipstone create {request.path}`, or sks.create(), and save again"
        )


def _told(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [message for message in messages if isinstance(message, TaskMessage)]


def _session_is_dynamic() -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    mode = None if context is None else context.getLocalProperty(_SESSION_MODE)
    return mode is not None and mode.lower() == "dynamic"
