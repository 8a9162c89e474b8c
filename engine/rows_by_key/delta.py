"""Exchanges files of a Delta table: deltalake writes them, and commits one version that adds them and removes others.

Each writer lets deltalake write into a separate table in a folder of the table, from whose log come partition values
and statistics. The commit is tried once, as the version after the one that was planned.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from ...base.caching import cached_property
from ...errors import CommitConflictError, SkipstoneError, StorageError
from ..lakes.deletion_vectors import LOG_FOLDER
from ..lakes.delta import DeltaSource
from ..tasks.writer import fitted
from .exchange import LogExchange, LogWriter, refused

if TYPE_CHECKING:
    from ..handle import Handle
    from .edits import Edited
    from .rewrite import FileWriter, OldFile

# Of these features the ones that need more than new files are refused by the table's properties and columns.
_FEATURES = {"appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns"}
_FEATURES |= {"identityColumns", "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
_PROPERTIES = ("delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableRowTracking")
# deltalake encodes paths, and others may have encoded them otherwise: then the old file would stay live.
_PLAIN_PATH = re.compile(r"[\w./=-]+", re.ASCII)


class DeltaExchange(LogExchange):
    """By one transaction of deltalake. `added`: actions of a log; `removed`: paths as the log has them."""

    def __init__(self, handle: Handle, key: str | None):
        super().__init__(handle, key)
        assert isinstance(handle.log, DeltaSource)
        self._source = handle.log
        self._folders: list[str] = []  # of the writers
        reason = _reason_against(self._table)
        if reason is not None:
            raise refused(handle, reason)

    @cached_property
    def _table(self) -> Any:
        assert isinstance(self._handle.log, DeltaSource) and self._handle.log_position is not None
        return self._handle.log.table(int(self._handle.log_position))

    def _earlier(self, key: str) -> int | None:
        return self._handle.version if self._table.transaction_version(key) is not None else None

    @property
    def open_writer(self) -> Callable[[], FileWriter]:
        return self._new_writer

    def _new_writer(self) -> _DeltaWriter:
        self._folders.append(f"skipstone-{uuid.uuid4().hex}")
        return _DeltaWriter(self._handle, self._table, self._folders[-1])

    def remove(self, paths: Sequence[str]) -> None:
        """Raises InvalidArgumentError if deltalake cannot remove one of the files."""
        vectors = self._source.deleted_rows(self._handle.log_position, paths) if paths else {}
        for path in paths:
            if path in vectors:
                raise refused(self._handle, f"deltalake cannot remove a file with a deletion vector: {path}")
            if not _PLAIN_PATH.fullmatch(path):
                raise refused(self._handle, f"deltalake may name this file otherwise: {path}")
        super().remove(paths)

    def _discard(self) -> None:
        """Removes what the writers wrote, also those that failed."""
        for folder in self._folders:
            for action in _adds_of(self._handle, folder):
                with contextlib.suppress(SkipstoneError):
                    self._handle.storage.delete(unquote(action["path"]))
        self._forget_logs()

    def _forget_logs(self) -> None:
        for folder in self._folders:
            for path in _log_of(self._handle, folder):
                with contextlib.suppress(SkipstoneError):
                    self._handle.storage.delete(path)

    def _commit(self) -> None:
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        table, key, now_ms = self._table, self._key or uuid.uuid4().hex, int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(unquote(f["path"]), f["size"], f["partitionValues"], f["modificationTime"], True, f["stats"])
            for f in self.added
        ]
        actions += [RemoveAction(path, True, now_ms) for path in self.removed]
        options = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(key, 1)])
        columns = table.metadata().partition_columns
        try:
            table.create_write_transaction(actions, "append", table.schema(), columns, commit_properties=options)
        except Exception as error:  # it may have succeeded
            newest = self._source.table(None)
            if newest.transaction_version(key) is None:
                if newest.version() == table.version():
                    name = type(error).__name__
                    raise StorageError(f"{self._handle.location}: deltalake cannot commit ({name})") from error
                self._discard()
                raise CommitConflictError(
                    f"{self._handle.location}: another writer committed concurrently, so nothing changed; call again"
                ) from error
        self._forget_logs()


def _reason_against(table: Any) -> str | None:
    """Return why new files alone cannot change rows of this table; None if they can."""
    try:
        from deltalake.transaction import RemoveAction  # noqa: F401
    except ImportError:
        return "this deltalake cannot remove files by name; deltalake 1.6 can"
    metadata, protocol = table.metadata(), table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())} - _FEATURES
    if features:
        return f"it uses {', '.join(sorted(features))}"
    properties = metadata.configuration
    for name in properties:
        if name.startswith("delta.constraints.") or (name in _PROPERTIES and properties[name].lower() == "true"):
            return f"it has the property {name}"
    if properties.get("delta.columnMapping.mode", "none") != "none":
        return "its files name columns otherwise"
    if '"delta.' in json.dumps(json.loads(table.schema().to_json())["fields"]):
        return "it has columns with rules, such as generated ones"
    return None


class _DeltaWriter(LogWriter):
    """Writes files by deltalake, into a separate table. See `FileWriter`."""

    def __init__(self, handle: Handle, table: Any, folder: str):
        super().__init__()
        self._handle, self._folder = handle, folder
        self._schema, metadata = pa.schema(table.schema().to_arrow()), table.metadata()
        self._partitioning = metadata.partition_columns or None
        names = ("delta.dataSkippingNumIndexedCols", "delta.dataSkippingStatsColumns")
        self._properties = {name: metadata.configuration[name] for name in names if name in metadata.configuration}

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        self.result = _adds_of(self._handle, self._folder)

    def rewrite(self, file: OldFile, edited: Edited, updated: Sequence[str]) -> None:
        self.insert(edited.rows)

    def insert(self, rows: pa.Table) -> None:
        self._wait((), fitted(rows, self._schema))

    def _write(self, partition: tuple, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(
            f"{self._handle.location}/{self._folder}",
            rows,
            partition_by=self._partitioning,
            mode="append",
            configuration=self._properties,
            storage_options=dict(self._handle.storage_options) or None,
        )


def _log_of(handle: Handle, folder: str) -> list[str]:
    with contextlib.suppress(SkipstoneError):
        return [entry.path for entry in handle.storage.list_folder(f"{folder}/{LOG_FOLDER}")[0]]
    return []


def _adds_of(handle: Handle, folder: str) -> list[dict[str, Any]]:
    """The files that a writer's own log names, by their paths in the table."""
    commits = [handle.storage.read(path) for path in _log_of(handle, folder) if path.endswith(".json")]
    actions = (json.loads(line) for commit in commits for line in commit.splitlines())
    return [{**add, "path": f"{folder}/{add['path']}"} for action in actions if (add := action.get("add")) is not None]
