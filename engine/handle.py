"""The handle by which one version of a table is read: its storages, its timeline, its runs, its instant.

Commits, index builds and scans receive a `Handle`, and do not depend on `table.py`, which adds the methods that users
call.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from ..errors import InvalidArgumentError, NotReadableError, SkipstoneWarning
from .state import Instant, Timeline
from .state.cache import process_cache
from .state.runs import RunReaders
from .state.snapshot import Snapshot, remedy
from .storage import Counted, Storage, StorageOptions, options_of, relative_path

if TYPE_CHECKING:
    from .choices import OnStale
    from .lakes.table_format import LogSource, LogState
    from .scan_log import ScanLog


WithLogTail = Callable[[Instant, RunReaders, Storage, "LogState"], Snapshot]

Reopening = tuple[Callable[..., "Handle"], tuple]
"""How to open a handle again, in another process: a function, and its arguments."""


class Handle:
    """Pins a version and, for a log of another format, a state of that log; moves to another one on request.

    storage, index_storage   the storages of the data files and of the index root
    timeline, readers        the instants, and the runs that they name
    instant                  the version that is read
    strict                   a damaged index run is an error, not a warning
    is_pinned                opened at a chosen version, read-only
    scan_log                 where a line is written for each plan; None: nowhere
    log                      the log that owns the files; None for a directory
    on_stale                 what a query does if the directory changed since the last sync; None: "warn" on a local
                             disk, "ignore" elsewhere
    equal_folders            folder -> its modification time when its files were found to be those of the version
    reported_changes         the changes that the last warning named
    executors                does work on many files instead of this process (`spark_adapter.maintenance`), or None

    `with_log_tail` returns a version with the newer state of its log. Binding files is the work of `commit`, which is
    above this module, so the caller that passes a log passes this function as well. It also passes `reopen`, which
    opens a pickled handle; the pickle contains the storage options with `pickle_credentials`.
    """

    def __init__(
        self,
        storage: Counted,
        index_storage: Counted,
        timeline: Timeline,
        readers: RunReaders,
        instant: Instant,
        is_pinned: bool = False,
        strict: bool = False,
        log: LogSource | None = None,
        with_log_tail: WithLogTail | None = None,
        reopen: Callable[..., Handle] | None = None,
        pickle_credentials: bool = False,
    ):
        self.storage, self.index_storage, self.timeline, self.readers = storage, index_storage, timeline, readers
        self.strict = strict
        self.is_pinned = is_pinned
        self.scan_log: ScanLog | None = None
        self.on_stale: OnStale | None = None
        self.equal_folders: dict[str, int] = {}
        self.reported_changes: object = None
        self.executors: Any = None
        self.instant, self.log, self._with_log_tail = instant, log, with_log_tail
        self._reopen, self._pickle_credentials = reopen, pickle_credentials
        self._warned_of: tuple[dict, ...] = ()
        self._snapshot: Snapshot | None = self._pinned(instant, None)

    @property
    def snapshot(self) -> Snapshot:
        """The contents of the version, with the later changes of its log."""
        instant, snapshot = self.instant, self._snapshot
        if snapshot is None:
            snapshot = self._pinned(instant, None)
            if self.instant is instant:  # no thread has moved the handle since
                self._snapshot = snapshot
        return snapshot

    def __reduce__(self) -> Reopening:
        if self.origin is None:
            raise InvalidArgumentError(f"{self.location}: this handle belongs to a commit, and is not pickled")
        return self.origin

    @property
    def origin(self) -> Reopening | None:
        """How to open this handle again, on both versions; None for a handle that belongs to a commit."""
        if self._reopen is None:
            return None
        return self._reopen, (
            self.location if self.log is None else self.log.location,
            self.instant.table_id,
            self.version,
            None if self.log is None else self.log_position,
            self.index_storage.uri,
            dict(self.storage_options) if self._pickle_credentials else None,
            self.strict,
            "coarse" if self.readers.keeps_groups else None,
            self.is_pinned,
            self.on_stale,
        )

    def close(self) -> None:
        """Close the files that this handle opened. The handle stays usable."""
        self.readers.close()

    def forget(self) -> None:
        """Also drop what the process caches of this table for its next handle. Answers do not depend on it."""
        self.readers.close()
        process_cache().forget(lambda run: run[0] == self.index_storage.uri)
        self.timeline.forget()

    @property
    def location(self) -> str:
        """The table's directory."""
        return self.storage.uri

    @property
    def storage_options(self) -> StorageOptions:
        """The options that opened the object stores of the table and its index; no values are shown."""
        return options_of(self.storage, self.index_storage)

    @property
    def version(self) -> int:
        """The version that this handle reads; 1 after `create`."""
        return self.instant.version

    @property
    def committed(self) -> Snapshot:
        """The contents of the version itself, without later changes of the log of another format."""
        return self.snapshot if self.snapshot.instant is self.instant else Snapshot(self.instant, self.readers)

    @property
    def log_position(self) -> str | None:
        """The state of the log of another format that this handle reads; None for a directory."""
        tail = self.snapshot.tail
        return self.instant.source.get("position") if tail is None else tail.position

    @property
    def schema(self) -> pa.Schema:
        """Data columns and partition columns."""
        return self.snapshot.instant.schema

    @property
    def is_hive(self) -> bool:
        """True if `key=value` folders name the partitions."""
        return bool(self.instant.source.get("hive"))

    def relative(self, path: str | os.PathLike) -> str:
        """Return a path as `files()` lists it."""
        return relative_path(self.storage, path)

    def refresh(self) -> Self:
        """Move this handle to the latest version that can be read. If a newer one was lost, warn, or raise
        CorruptionError if `strict`."""
        latest = self.timeline.latest(known=None if self.is_pinned else self.instant)
        assert latest is not None
        self.timeline.check_whole(latest, self.strict)
        was_pinned, self.is_pinned = self.is_pinned, False
        if self.log is not None or was_pinned:
            self.instant, self._snapshot = latest, self._pinned(latest, None)
        else:
            self.move_to(latest)
        return self

    def on(self, instant: Instant) -> Handle:
        """Return another handle, on a version that was read."""
        other = Handle(self.storage, self.index_storage, self.timeline, self.readers, instant, True, self.strict)
        other.executors = self.executors
        return other

    def move_to(self, instant: Instant) -> None:
        """Move this handle to another version. It keeps the state of the log of another format, unless the version
        follows that log. Without a log nothing is read, so that an acknowledged commit does not fail here."""
        if instant.version != self.version or instant.transaction != self.instant.transaction:
            if self.log is None:
                self.instant, self._snapshot = instant, None
                return
            position = self.log_position if instant.source == self.instant.source else None
            self.instant, self._snapshot = instant, self._pinned(instant, position)

    def pin_log(self, position: str) -> None:
        """Let this handle read its version with one state of the log, which is that of the version or a later one.
        Raises InvalidArgumentError if there is no log."""
        if self.log is None:
            raise InvalidArgumentError(f"{self.location}: this table is a plain directory, which has no log")
        self._snapshot = self._with_remedy(self._with_log(self.instant, position))

    def _pinned(self, instant: Instant, log_position: str | None) -> Snapshot:
        if self.log is None or self.is_pinned:
            snapshot = Snapshot(instant, self.readers)
        else:
            snapshot = self._with_log(instant, log_position)
        return self._with_remedy(snapshot)

    def _with_remedy(self, snapshot: Snapshot) -> Snapshot:
        snapshot.remedy = partial(
            remedy,
            instant=snapshot.instant,
            is_pinned=self.is_pinned,
            follows_log=self.log is not None,
        )
        return snapshot

    def _with_log(self, instant: Instant, position: str | None) -> Snapshot:
        assert self.log is not None
        from .lakes.table_format import recorded_state

        state = self.log.state_at(position, recorded_state(instant))
        if state is None:
            return Snapshot(instant, self.readers)
        assert self._with_log_tail is not None
        return self._with_log_tail(instant, self.readers, self.storage, state)

    def check_owns_files(self) -> None:
        """Raise InvalidArgumentError if the files belong to the log of another format, because its owner decides which
        files are live, and which columns the table has."""
        if self.log is not None:
            kind = self.instant.source["kind"]
            raise InvalidArgumentError(
                f"{self.location}: its files and columns are those of its {kind} log, which only {kind}'s own writers "
                "change",
                hint="change them there, and {sync}",
            )

    def check_quarantined(self) -> None:
        """For each query, warn, once for the same files, that the rows of quarantined files are missing. If `strict`,
        raise NotReadableError. A quarantined file of a log stays live, so reading it raises."""
        files = self.instant.quarantined
        if not files or self.log is not None or (files == self._warned_of and not self.strict):
            return
        first, rows = files[0], sum(file["rows"] or 0 for file in files)
        unreadable = sum(file["rows"] is None for file in files)
        lacking = [f"{rows:,} row{'' if rows == 1 else 's'}"] if rows or not unreadable else []
        lacking += [f"the rows of files that cannot be read ({unreadable:,})"] if unreadable else []
        are = "1 file is" if len(files) == 1 else f"{len(files):,} files are"
        message = (
            f"{self.location}: {are} quarantined, so answers lack {' and '.join(lacking)}; the first is "
            f"{first['path']}: {first['reason']}"
        )
        hint = "{verify} lists them, and {sync} tries them again"
        if self.strict:
            raise NotReadableError(message, paths=[file["path"] for file in files], hint=hint)
        self._warned_of = files
        warnings.warn(SkipstoneWarning(message, hint=hint), stacklevel=3)

    def check_latest(self) -> None:
        """Raise InvalidArgumentError for a handle that was opened on a chosen version."""
        if self.is_pinned:
            raise InvalidArgumentError(
                f"this handle was opened on version {self.version}, which is read-only; refresh() it, or open() "
                "the table again"
            )
