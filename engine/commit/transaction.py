"""A transaction: it collects changes, and commits all of them or none.

    with table.transaction() as tx:
        tx.write(rows)                        # Parquet + task index, in this process
        tx.add_files(["month=1/new.parquet"])
        tx.remove(["month=1/old.parquet"])

On an exception it removes everything that it wrote. The name of each file contains the id of the transaction, which
ends with that of the table. So `sync` recognizes such files, and `clean` finds those of dead processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy, to_numpy
from ...errors import CommitConflictError, InvalidArgumentError, SkipstoneError
from ..choices import Overwritten
from ..indexes.kind import part_specs
from ..indexes.task_result import TaskResult, temporary_paths
from ..state import COMMIT_STATES, COMPLETED, Instant, Timeline, new_transaction_id
from ..state.lsm import RunWriter
from ..state.paths import paths_of, task_path
from ..state.publishing import UnpublishedFiles
from ..state.snapshot import Snapshot
from ..storage import FileMissingError, Storage
from ..storage.wrappers import WriteBuffer
from ..tasks.declared import declared_files
from ..tasks.spec import TaskSpec
from ..tasks.writer import TaskWriter
from .commit import WriteBatch, commit, newest_after
from .conflicts import check_not_purged, check_slices, check_unchanged, live_files, read_instant, same_partitions
from .edit import Edit, removal

if TYPE_CHECKING:
    from ..handle import Handle


_ALIVE = "alive"  # in the name of the file of `keep_alive`


class Transaction:
    """`Table.transaction` returns it. It commits at the end of its block; on an exception, nothing changes."""

    def __init__(self, handle: Handle, key: str | None = None, id: str | None = None, base: Instant | None = None):
        """`id`: of a transaction that was started elsewhere (see `distributed`). It begins at `base`, by default at the
        version of the handle."""
        self._base = base or handle.instant
        self._before = Snapshot(self._base, handle.readers)
        self.id = id or new_transaction_id(self._base.table_id)
        self.committed: Instant | None = None
        self.builds_indexes = False  # the commit builds secondary indexes that tasks do not
        self._is_resumed = id is not None
        self._handle, self._key = handle, key
        self._results: list[TaskResult] = []
        self._removed: dict[int, str] = {}
        self._overwritten: list[pa.Table] = []
        self._states: dict[str, str] = {}
        self._reads: list[tuple[Instant, list[pa.ChunkedArray] | None]] = []  # the versions that overwrites depend on
        self._writer: TaskWriter | None = None
        self._is_open = self._is_kept_alive = False
        self._process = os.getpid()
        self._leftovers = UnpublishedFiles()
        self._earlier: Instant | None = None
        self._index_storage = WriteBuffer(handle.index_storage)

    def __enter__(self) -> Transaction:
        self._is_open = True
        if self._is_resumed:  # `DistributedTransaction.abort` looks for it
            self.keep_alive()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None and os.getpid() != self._process:  # a fork: the process that started it continues it
            return
        self._check_process()
        self._is_open = False
        if kind is not None:
            self._abort()
            return
        try:
            self._commit()
        except BaseException:
            self._abort()
            raise

    # -- what it collects ---------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        """Add rows: a pyarrow Table, RecordBatch, batches or an Arrow stream. They are written in the table's
        partitions. Columns have the names that they had when this transaction began.

        Raises SchemaError for columns that the table does not have or values that do not fit.
        """
        self._check_open()
        if self._writer is None:
            self._writer = self._new_writer()
        self._writer.write(data)

    def add_files(self, files: Sequence[str] | pa.Table) -> None:
        """Add existing files: paths relative to the table, whose footers are read, or an Arrow table of path,
        size_bytes, row_count and optional columns (see `tasks.declared`); these need not be readable.

        Raises CorruptionError for a path that is not complete Parquet, StorageError for one that does not exist.
        """
        self._check_open()
        if isinstance(files, pa.RecordBatch):
            files = pa.Table.from_batches([files])
        if isinstance(files, pa.Table):
            self._results.append(
                declared_files(
                    files, self._base.schema, self._base.partitioning, self._handle.is_hive, self._handle.storage
                )
            )
            return
        paths = paths_of(files)
        with self._new_writer() as task:
            task.add_files([self._handle.relative(path) for path in paths])
        self._take(task.result)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files from the table; they stay on storage. Raises InvalidArgumentError for a path that is not
        live."""
        self._check_open()
        wanted = [self._handle.relative(path) for path in paths_of(paths)]
        by_path = self._before.find(list(dict.fromkeys(wanted)))
        missing = [path for path in wanted if path not in by_path]
        if missing and self._earlier_try() is None:
            raise InvalidArgumentError(f"{missing[0]}: not a file of this table at version {self._base.version}")
        self._removed.update((number, path) for path, number in by_path.items())

    def replace(self, old_paths: Sequence[str], new_files: Sequence[str] | pa.Table) -> None:
        """Remove files and add others in one step."""
        self.remove(old_paths)
        self.add_files(new_files)

    def overwrite(self, partitions: Overwritten = "all", *, read_version: int | None = None) -> None:
        """Remove the files that were live when this transaction began: all of them, or with "written" those of the
        partitions for which it has rows so far (without partitions: all). Files that others added since stay.

        Args:
            partitions: "all" or "written".
            read_version: the version from which the written rows were computed. With it, every change by others in
                these partitions since that version is a conflict, additions included; changes elsewhere are not.
                Without it, Skipstone detects no conflict: it removes files that others added before this transaction
                began.

        The transaction raises CommitConflictError at its end if another writer removed one of these files concurrently
        or, with `read_version`, changed these partitions. Raises InvalidArgumentError for a version after the one at
        which this transaction began, CommitConflictError for one that was cleaned.
        """
        self._check_open()
        if partitions not in ("all", "written"):
            raise InvalidArgumentError(f'overwrite accepts "all" or "written", not {partitions!r}')
        read = None if read_version is None else read_instant(self._handle.timeline, self._base, read_version)
        if partitions == "all" or not self._base.partitioning:
            texts, ids = None, None
        else:
            self._close_writer()
            texts = [result.files.column("partition").unique() for result in self._results]
            ids = same_partitions(self._before, texts)
        self._overwritten.append(live_files(self._before, ids))
        if read is not None:
            self._reads.append((read, texts))

    def depend_on(self, partitions: Sequence[pa.Array | pa.ChunkedArray] | None = None) -> None:
        """Make any change by others in some partitions, since this transaction began, a conflict. Use it if rows are
        added because others are absent. The transaction then raises CommitConflictError at its end.

        Args:
            partitions: the texts of the partitions; None for all.
        """
        self._check_open()
        self._reads.append((self._base, None if partitions is None else list(partitions)))

    def set_commit_state(self, states: Mapping[str, str]) -> None:
        """Set the states of commits that wrote base and log files, by the names that `add_files` received in `commit`.

        Args:
            states: commit -> "completed", "inflight", "failed" or "rolled_back". They apply from the version that this
                transaction creates; earlier versions keep theirs. A commit without a state counts as completed.

        Raises InvalidArgumentError for another state. The transaction raises CommitConflictError at its end if another
        writer set another state for one of the commits concurrently.
        """
        self._check_open()
        if not isinstance(states, Mapping) or not all(isinstance(name, str) for name in states):
            raise InvalidArgumentError(f"commit states are a mapping of a commit's name to its state, not {states!r}")
        for name, state in states.items():
            if not isinstance(state, str) or state not in COMMIT_STATES:
                names = ", ".join(COMMIT_STATES)
                raise InvalidArgumentError(f"commit {name!r} cannot be {state!r}; a commit is one of {names}")
        self._states.update(states)

    def task_spec(
        self,
        *,
        row_group_rows: int | None = None,
        row_group_bytes: int | None = None,
        file_rows: int | None = None,
        file_bytes: int | None = None,
    ) -> TaskSpec:
        """Return what another process, or an executor, needs to write a task of this transaction. Picklable.

        Args:
            row_group_rows, row_group_bytes: a row group ends at so many rows (default: 131,072), or before it takes
                more bytes in memory (default: 128 MiB).
            file_rows, file_bytes: a file ends once it has so many rows (default: 1,048,576), or with the row group in
                which it reached so many bytes as stored (default: 1 GiB).
        """
        sizes = {
            "row_group_rows": row_group_rows,
            "row_group_bytes": row_group_bytes,
            "file_rows": file_rows,
            "file_bytes": file_bytes,
        }
        return spec_of(self._handle, self._base, self.id).sized(sizes)

    def add_task(self, result: list[TaskResult]) -> None:
        """Add the `result` of a TaskWriter that had a `task_spec` of this transaction, in this process or another.
        Raises InvalidArgumentError for a result of another transaction, which alone may commit or remove it. If an
        earlier try under the same `key` committed the result, nothing is added."""
        self._check_open()
        if not isinstance(result, list) or not all(isinstance(r, TaskResult) for r in result):
            raise InvalidArgumentError("add_task accepts the `result` of a TaskWriter, after its `with` block")
        others = {r.transaction for r in result} - {self.id}
        if others:
            earlier = self._earlier_try()
            if earlier is None or others != {earlier.transaction}:
                raise InvalidArgumentError(
                    "this result is of a task of another transaction: run the task again, by this one's `task_spec()`"
                )
            return
        self._take(result)

    def keep_alive(self) -> None:
        """Write a small file that keeps `clean` from giving this transaction up. Call it more often than the `min_age`
        of a clean (24 hours by default) if this transaction writes nothing for that long."""
        self._check_open()
        path = task_path(self.id, _ALIVE)
        self._leftovers.add(self._handle.index_storage, path)
        self._handle.index_storage.put(path, b"", is_durable=False)
        self._is_kept_alive = True

    # -- how it ends --------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        if self._earlier is not None:
            self.committed = self._newest_try()
            self._drop_writer()
            self._leftovers.remove()
            return
        removed = removal(self._removed)
        if self._overwritten:
            removed = pa.concat_tables([*self._overwritten, removed])
            _, first = np.unique(to_numpy(removed.column("file_id")), return_index=True)
            removed = removed.take(from_numpy(first))
        self._close_writer()
        results = [r for r in self._results if r.files.num_rows]
        if not results and not removed.num_rows and not self._states:
            return
        read_from = min((read.version for read, _ in self._reads), default=self._base.version)
        batch = WriteBatch(self.id, self._base, self._index_storage, self._leftovers, read_from)

        def plan(newest: Snapshot, _: RunWriter) -> Edit:
            if newest.instant.version > read_from:
                self._validate(newest, results, removed)
            data = self._handle.storage if self.builds_indexes else None
            return Edit(results=results, removed=removed, states=self._states, data=data)

        action = "replace" if results and removed.num_rows else "commit"
        self.committed = commit(self._handle, action, plan, self._key, batch=batch)
        if self.committed.transaction == self.id:  # otherwise an earlier try under the same key had committed
            self._drop_parts(results)

    def _close_writer(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with writer:
                pass
            self._take(writer.result)

    def _drop_parts(self, results: Sequence[TaskResult]) -> None:
        """Remove the files whose content the commit copied. A clean removes those that stay behind."""
        for path in (*temporary_paths(results), *([task_path(self.id, _ALIVE)] if self._is_kept_alive else [])):
            with contextlib.suppress(SkipstoneError):
                self._index_storage.delete(path)

    def _validate(self, newer: Snapshot, results: list[TaskResult], removed: pa.Table) -> None:
        """Raise CommitConflictError if another transaction set a different state of a commit, changed a slice, or
        changed files that are overwritten here since they were read, or if a purge may have deleted an added file."""
        if any(not result.written for result in results):
            check_not_purged(self._handle.timeline, self._base, newer.instant)
        for name, state in self._states.items():
            then, now = (i.commit_states.get(name, COMPLETED) for i in (self._base, newer.instant))
            if now not in (then, state):
                raise CommitConflictError(f"another transaction set commit {name!r} {now}, which is to be {state} here")
        for read, texts in self._reads:
            check_unchanged(Snapshot(read, self._handle.readers), newer, texts)
        check_slices(self._before, newer, results, removed, self._states)

    def _abort(self) -> None:
        self._drop_writer()
        # A transaction that was started elsewhere may have been committed elsewhere: then the table owns its files.
        timeline, base = self._handle.timeline, self._base
        if not self._is_resumed or not may_be_named(timeline, base.table_id, base.version, self.id):
            self._leftovers.remove()

    def _new_writer(self) -> TaskWriter:
        return TaskWriter(self.task_spec(), self._index_storage, self._handle.storage.uncounted)

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.abort()

    def _take(self, results: list[TaskResult]) -> None:
        """Take over what a task wrote, so that it is removed with the transaction."""
        self._results += results
        add_results(self._leftovers, results, self._handle.storage, self._index_storage)

    def _earlier_try(self) -> Instant | None:
        """Return the version that was committed under this transaction's key before it began; None if there is none."""
        if self._earlier is None and self._key is not None:
            version = Snapshot(self._base, self._handle.readers).version_of_key(self._key)
            if version is not None:
                self._earlier = self._handle.timeline.find(version) or self._base
        return self._earlier

    def _newest_try(self) -> Instant:
        """Return the version that the newest one names for this transaction's key. Raise CommitConflictError if it
        names none: a rollback or a restore undid the earlier try since this transaction began."""
        newest = newest_after(self._handle.timeline, self._base)
        version = None if self._key is None else Snapshot(newest, self._handle.readers).version_of_key(self._key)
        if version is None:
            raise CommitConflictError(
                f"{self._handle.location}: the commit under the key {self._key!r} was undone; refresh() the table, and "
                "begin again"
            )
        return self._handle.timeline.find(version) or newest

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidArgumentError("a transaction is used within its `with` block")
        self._check_process()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgumentError(
                "a transaction is used, and ends, in the process that began it; others get its `task_spec()`"
            )


# -- tasks of a transaction -------------------------------------------------------------------------------------------


def spec_of(handle: Handle, base: Instant, transaction: str) -> TaskSpec:
    """Return what a task needs of a transaction that begins at a version of the table."""
    return TaskSpec(
        location=handle.storage.uri,
        index_location=handle.index_storage.uri,
        transaction=transaction,
        schema=base.schema,
        partitioning=base.partitioning,
        hive_partitioned=handle.is_hive,
        stats_columns=base.stats_paths(),
        parts=part_specs(base),
        storage_options=handle.storage_options,
    )


def add_results(leftovers: UnpublishedFiles, results: Iterable[TaskResult], data: Storage, index: Storage) -> None:
    """Record what tasks wrote, so that it is removed with their transaction."""
    for result in results:
        for path in result.written:
            leftovers.add(data, path)
        if result.index is not None:
            for path in result.index.paths:
                leftovers.add(index, path)


def is_resumed(index_storage: Storage, transaction: str) -> bool:
    """Return True while a process commits a transaction that was started elsewhere, and also if that process died, or
    could not find out if it published it."""
    try:
        index_storage.stat(task_path(transaction, _ALIVE))
    except FileMissingError:
        return False
    return True


def may_be_named(timeline: Timeline, table_id: str, version: int, transaction: str) -> bool:
    """Return True if an instant after `version` belongs to this transaction, or one was lost, or if another table
    replaced this one: it may have adopted the files that were there."""
    latest = timeline.latest()
    if latest is None or latest.table_id != table_id:
        return latest is not None
    transactions = [instant.transaction for instant in timeline.instants(version + 1, latest.version)]
    return transaction in transactions or len(transactions) < latest.version - version or timeline.lost is not None
