"""The commit that exchanges files: a transaction, or a commit of the library whose log owns the files."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from ...errors import InvalidArgumentError, SkipstoneError, SkipstoneWarning
from ..commit.indexing import refresh_all
from ..commit.sync import sync_table
from ..commit.transaction import Transaction
from ..lakes import DELTA, HUDI, ICEBERG
from ..state.snapshot import Snapshot
from .rewrite import FileWriter, OldFile, OwnWriter, with_codec_of

if TYPE_CHECKING:
    from ..handle import Handle
    from ..storage import Counted

_BULK_ROWS = 50_000  # for more rows, keys are sorted in half of the time if all are sorted together, by the commit
_WAITING_BYTES = 128 << 20  # of rows that wait in one writer
_OTHERWISE = {
    DELTA: "call DeltaTable.delete(), update() or merge() of deltalake",
    ICEBERG: "call delete(), overwrite() or upsert() of pyiceberg's Table, or use another engine",
    HUDI: "write the change by Hudi, which also keeps its own indexes and timeline",
}


def refused(handle: Handle, reason: str) -> InvalidArgumentError:
    """The error for a table whose log decides which files are live, and to which Skipstone cannot commit."""
    kind = handle.instant.source["kind"]
    return InvalidArgumentError(
        f"{handle.location}: its files belong to a {kind} log, and Skipstone cannot exchange them, because {reason}; "
        f"{_OTHERWISE[kind]}, then sync(); scan(where).affected_files() and positions() return what has to change"
    )


class Exchange:
    """Exchanges files of a table whose files belong to it; subclasses do so in the log of another format.

    The handle reads the newest version before and after. A `with` block commits at its end, and removes what was
    written if it raises. CommitConflictError: another writer changed what the plan rests on.

    earlier    the version that a change with the same key created; None if there is none
    base       the version that the change was planned on: the commit begins there, wherever the handle is by then
    """

    def __init__(self, handle: Handle, key: str | None):
        handle.refresh()
        self.base = handle.instant
        self._handle, self._key, self._is_bulk = handle, key, False
        self.earlier = self._earlier(key) if key is not None else None

    def _earlier(self, key: str) -> int | None:
        return Snapshot(self.base, self._handle.readers).version_of_key(key)

    def prepare(self, storage: Counted, files: Sequence[OldFile]) -> None:
        """Called first in the block. `files`: of the plan, some of which will be removed."""
        spec = self._tx.task_spec()
        # Executors sort the keys of what they write.
        if self._handle.executors is None and sum(file.task.row_count for file in files) >= _BULK_ROWS:
            spec = replace(spec, parts=tuple(part for part in spec.parts if not part.can_wait))
            self._tx.builds_indexes = self._is_bulk = True
        self._spec = with_codec_of(spec, storage, [file.task for file in files]) if files else spec

    def __enter__(self) -> Self:
        self._tx = Transaction(self._handle, self._key, base=self.base).__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._tx.__exit__(kind, error, traceback)
        if kind is None and self._is_bulk:
            self._follow()

    def _follow(self) -> None:
        """Build the indexes of the new files that the commit did not. The change is committed, so nothing raises."""
        try:
            if self._handle.log is not None:
                sync_table(self._handle)
            refresh_all(self._handle, progress=None)
        except SkipstoneError as error:
            message = f"{self._handle.location}: the change is committed, and indexes do not cover it yet: {error}"
            warnings.warn(SkipstoneWarning(message, hint="call {sync} with refresh=True"), stacklevel=2)

    @property
    def open_writer(self) -> Callable[[], FileWriter]:
        """Open a writer, for one thread. Picklable, if executors rewrite the files."""
        return partial(OwnWriter, self._spec)

    def add(self, results: list[Any]) -> None:
        """Add the files that a writer wrote."""
        self._tx.add_task(results)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files of the version that was planned."""
        self._tx.remove(paths)

    def depend_on(self, results: list[Any], on: Sequence[str]) -> None:
        """Make it a conflict if another writer adds keys of the rows in `results`, which the table lacks: in their
        partitions if the key decides the partition, else in any. `on`: the columns of the key."""
        is_keyed = bool(self._spec.partitioning) and set(self._spec.partitioning) <= set(on)
        self._tx.depend_on([result.files.column("partition").unique() for result in results] if is_keyed else None)


class LogExchange(Exchange, ABC):
    """Commits by the library of a log. Every other commit is a conflict.

    added, removed    files as the library names them
    """

    def prepare(self, storage: Counted, files: Sequence[OldFile]) -> None:
        pass

    def __enter__(self) -> Self:
        self.added: list[Any] = []
        self.removed: list[Any] = []
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            self._discard()
        elif self.added or self.removed:
            self._commit()
            self._follow()

    @abstractmethod
    def _discard(self) -> None:
        """Remove what the writers wrote."""

    @abstractmethod
    def _commit(self) -> None:
        """Commit, or discard the files and raise CommitConflictError. Raises StorageError if the outcome is unknown."""

    def add(self, results: list[Any]) -> None:
        self.added += results

    def remove(self, paths: Sequence[str]) -> None:
        self.removed += paths

    def depend_on(self, results: list[Any], on: Sequence[str]) -> None:
        pass


class LogWriter(ABC):
    """A `FileWriter` whose rows wait until there are enough of them for a file, in bounded memory."""

    def __init__(self) -> None:
        self.result: list[Any] = []
        self._waiting: dict[tuple, list[pa.Table]] = {}  # partition -> rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        for partition in list(self._waiting) if kind is None else ():
            self._flush(partition)

    def _wait(self, partition: tuple, rows: pa.Table) -> None:
        if rows.num_rows:
            self._waiting.setdefault(partition, []).append(rows)
        sizes = {partition: sum(rows.nbytes for rows in waiting) for partition, waiting in self._waiting.items()}
        if sum(sizes.values()) >= _WAITING_BYTES:
            self._flush(max(sizes, key=sizes.__getitem__))

    def _flush(self, partition: tuple) -> None:
        self._write(partition, pa.concat_tables(self._waiting.pop(partition)))

    @abstractmethod
    def _write(self, partition: tuple, rows: pa.Table) -> None:
        """Write files of one partition."""
