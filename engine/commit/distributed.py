"""A transaction that spans several processes, as jobs of Spark, Ray and Dask need it.

    work = table.distributed_transaction()           # picklable; nothing is written
    with ss.TaskWriter(work.task_spec()) as task:    # in any process, any number of times
        task.write(rows)
    with work.resume() as tx:                        # in any process, once: it commits the tasks that it receives
        tx.add_task(task.result)

Only the tasks that are passed to `resume` are committed. A task that ran twice, or was retried, leaves files that no
version names, and that no `sync` considers new: `clean` removes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import CommitConflictError, InvalidArgumentError, NotATableError
from ..handle import Handle
from ..indexes.task_result import TaskResult
from ..state import Timeline, new_transaction_id
from ..state.publishing import UnpublishedFiles
from ..state.runs import RunReaders
from ..storage import open_storages
from ..tasks.spec import TaskSpec
from .transaction import Transaction, add_results, is_resumed, may_be_named, spec_of


@dataclass(frozen=True)
class DistributedTransaction:
    """A transaction over several processes. `Table.distributed_transaction` returns it. Picklable and small.

    id, key     of the transaction, and of the idempotent commit
    version     the version of the table at which it began
    """

    id: str
    table_id: str
    version: int
    key: str | None
    _spec: TaskSpec

    @classmethod
    def start(cls, handle: Handle, key: str | None) -> DistributedTransaction:
        base = handle.instant
        name = new_transaction_id(base.table_id)
        return cls(name, base.table_id, base.version, key, spec_of(handle, base, name))

    def task_spec(self, **sizes: int | None) -> TaskSpec:
        """As `Transaction.task_spec`, with the same sizes. Raises InvalidArgumentError for any other name."""
        return self._spec.sized(sizes)

    @contextlib.contextmanager
    def resume(self) -> Iterator[Transaction]:
        """Return the transaction: pass it the results of tasks. It commits at the end of the block; on an exception,
        the files of these results are removed. Resume it only once.

        Raises CommitConflictError if it was resumed and committed before, if the version at which it began was cleaned,
        if the table was created again, or if a clean gave it up because its files were older than `min_age`.
        """
        spec = self._spec
        try:
            storage, index_storage = open_storages(spec.location, spec.index_location, spec.storage_options)
            timeline = Timeline(index_storage)
            instant = timeline.read(self.version)
            timeline.check_readable(instant)
        except NotATableError as error:
            raise CommitConflictError(
                f"{spec.location}: version {self.version}, at which this began, no longer exists ({error}); begin again"
            ) from error
        handle = Handle(storage, index_storage, timeline, RunReaders(index_storage), instant, is_pinned=True)
        with contextlib.closing(handle):
            if may_be_named(timeline, self.table_id, self.version, self.id):
                raise CommitConflictError(
                    f"{spec.location}: this transaction was committed before, or the table created again; begin again"
                )
            with Transaction(handle, self.key, self.id) as tx:
                yield tx

    def abort(self, results: Sequence[TaskResult]) -> None:
        """End the transaction without a change, and remove the files of the given results. Tasks that failed have
        removed their files; `clean` removes those of killed tasks later.

        If a `resume` has published it, or may have, nothing is removed: an extra file costs space, a missing file
        costs the table. Raise InvalidArgumentError for results of another transaction's tasks.
        """
        if any(result.transaction != self.id for result in results):
            raise InvalidArgumentError("these results are of tasks of another transaction: nothing was removed")
        spec = self._spec
        data, index = open_storages(spec.location, spec.index_location, spec.storage_options)
        if is_resumed(index, self.id) or may_be_named(Timeline(index), self.table_id, self.version, self.id):
            return
        leftovers = UnpublishedFiles()
        add_results(leftovers, results, data, index)
        leftovers.remove()
