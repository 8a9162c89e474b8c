"""Hudi tables: live files from the timeline and the folders, and changes from the instants since another state.

A state is the timeline up to its latest completed instant, without the earlier ones that were not complete then; its
position contains both. Checking an unchanged table reads the properties and lists the timeline. A changed table costs
the metadata of each instant since, and a listing of the partitions that contain new logs, or new bases over logs. If
that is not enough (instants were archived, completed instants were rolled back or restored), every partition is listed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from ....base.caching import cached_property
from ....errors import NotATableError, NotReadableError, StorageError
from ...parquet.footers import open_parquet
from ...storage import Entry, FileMissingError, Storage
from .. import HUDI
from ..column_naming import normalized_schema
from ..table_format import Changes, LogState, RecordedState, log_files
from .columns import HudiColumns
from .rows import SliceReader
from .timeline import (
    CLEAN,
    COMMIT,
    DELTA_COMMIT,
    EMPTY,
    FOLDER,
    REPLACE_COMMIT,
    RESTORE,
    ROLLBACK,
    HudiInstant,
    HudiTimeline,
    TimelineReader,
    parsed,
)
from .view import Group, HudiFile, SliceFile, View, file_of, list_partition, list_table, merge_of

_ATTEMPTS_MAX = 5
_TAIL_INSTANTS_MAX = 200  # for more, listing everything is cheaper


class HudiSource:
    """The timeline of one Hudi table; see `LogSource`."""

    def __init__(self, storage: Storage, options: Mapping[str, str] | None = None):
        self.storage, self.options = storage, dict(options or {})

    @property
    def location(self) -> str:
        return self.storage.uri

    def state_at(self, position: str | None, since: RecordedState | None) -> LogState | None:
        for _ in range(_ATTEMPTS_MAX):
            state = self._state_at(position)
            timeline = state.timeline
            instants = None if since is None else state.since(since)
            if since is not None and instants == [] and parsed(since.position)[0] == timeline.latest:
                return None  # only the pending writes differ
            with suppress(FileMissingError):  # of the timeline: archived, or rolled back
                changes = None if since is None or not instants else state.changes_by(instants, since)
                if changes is None:
                    changes = Changes(state.live_files(), None)
                if not state.was_cleaned_during_read():
                    return self._log_state(state, changes)
        raise StorageError(
            f"{self.storage.uri}: Hudi cleaned, archived or rolled back during {_ATTEMPTS_MAX} reads; try again"
        )

    def _log_state(self, state: _TableState, changes: Changes) -> LogState:
        timeline, columns = state.timeline, state.columns.columns
        version = None if timeline.latest == EMPTY else int(timeline.latest)

        def live_files() -> pa.Table:
            return self._state_at(timeline.position).live_files()

        return LogState(HUDI, version, timeline.position, state.table_id, timeline.mark, columns, changes, live_files)

    def position_of(self, log_version: int) -> str:
        return self._state_at(str(log_version)).timeline.position

    def deleted_rows(self, position: str | None, paths: Sequence[str]) -> dict[str, np.ndarray]:
        return {}  # logs delete rows by their keys

    def slice_rows(self, position: str | None) -> Callable[[pa.Table], pa.Table]:
        return SliceReader(self.storage, self.options, self._state_at(position).timeline).rows

    def _state_at(self, position: str | None) -> _TableState:
        """Read the timeline at a position, or the latest."""
        reader = TimelineReader(self.storage)
        properties = reader.properties()
        state = _TableState(self.storage, reader, properties, reader.read(properties, position))
        if position is not None:
            state.check_not_cleaned()
        return state


class _TableState:
    """A table at one state. Its metadata is read on demand and cached."""

    def __init__(self, storage: Storage, reader: TimelineReader, properties: dict[str, str], timeline: HudiTimeline):
        self.storage, self.properties, self.timeline = storage, properties, timeline
        self._reader = reader
        self._metadata: dict[str, dict[str, Any]] = {}
        self._has_listed = False

    @property
    def table_id(self) -> str:
        names = (self.properties.get("hoodie.database.name", ""), self.properties.get("hoodie.table.name", ""))
        return ".".join(name for name in names if name)

    @property
    def is_merge_on_read(self) -> bool:
        return self.properties.get("hoodie.table.type", "COPY_ON_WRITE").upper() == "MERGE_ON_READ"

    def metadata(self, instant: HudiInstant) -> dict[str, Any]:
        if instant.path not in self._metadata:
            self._metadata[instant.path] = self._reader.metadata(instant)
        return self._metadata[instant.path]

    def since(self, since: RecordedState) -> list[HudiInstant] | None:
        if since.table_id != self.table_id:
            return None
        if since.position == EMPTY:
            return [] if self.timeline.latest == EMPTY else None
        return self.timeline.since(since.position, since.mark)

    def check_not_cleaned(self) -> None:
        """Raise NotATableError if a clean has removed files of this state."""
        latest = self.timeline.latest
        if latest in self.timeline.savepoints:
            return
        for clean in self.timeline.cleans:
            if not any(time < clean.time for time in self.timeline.later):
                continue  # it found this state to be the latest
            metadata = self.metadata(clean)
            kept = str(metadata.get("earliestCommitToRetain") or "")
            if latest < kept or (not kept and metadata.get("totalFilesDeleted") != 0):  # by versions of files, not time
                raise NotATableError(
                    f"{self.storage.uri}: Hudi cleaned files at {clean.time} that its state at {latest} may need; only "
                    f"later states{f', from {kept} on,' if kept else ''} can be read"
                )

    def was_cleaned_during_read(self) -> bool:
        """Return whether files may have been removed while they were listed."""
        if not self._has_listed:
            return False
        now = self._reader.read(self.properties, None)
        ends = (f".{CLEAN}", f".{ROLLBACK}", f".{RESTORE}")
        return any(end in path for path in now.seen - self.timeline.seen for end in ends)

    # -- columns ------------------------------------------------------------------------------------------------------

    @cached_property
    def columns(self) -> HudiColumns:
        """The table's columns at this state, from the latest commit that contains a schema."""
        for instant in reversed(self.timeline.writes):
            extra = self.metadata(instant).get("extraMetadata") or {}
            where = f"{self.storage.uri}/{instant.path}"
            if extra.get("latest_schema"):
                raise NotReadableError(
                    f"{where}: the table evolves its schema on read (hoodie.schema.on.read.enable), and files are read "
                    "by names of before; read it with Hudi",
                    paths=[instant.path],
                )
            if extra.get("schema"):
                return HudiColumns(self.properties, extra["schema"], where)
        where = f"{self.storage.uri}/{FOLDER}/hoodie.properties"
        schema = self.properties.get("hoodie.table.create.schema") or self._schema_of_base()
        if schema is None:
            raise NotReadableError(f"{where}: no commit contains the table's columns; write a commit first")
        return HudiColumns(self.properties, schema, where)

    def _schema_of_base(self) -> pa.Schema | None:
        """Return the schema of a base file of the latest commit that wrote a file."""
        files = list_table(self.storage, self.timeline, self._is_partition)
        bases = [f for f in files if f.ending == "parquet" and self.timeline.is_committed(f.instant)]
        if not bases:
            return None
        entry = self.storage.stat(max(bases, key=lambda f: f.instant).path)
        with open_parquet(self.storage, entry, is_checked=False) as file:
            return normalized_schema(file.arrow_schema)

    # -- files --------------------------------------------------------------------------------------------------------

    def live_files(self) -> pa.Table:
        """Return every live file (LOG_FILES)."""
        replaced = self._replaced(self.timeline.writes)
        self._has_listed = True
        files = list_table(self.storage, self.timeline, self._is_partition)
        return self._table(self._view(replaced).live(files))

    def _is_partition(self, folder: str) -> bool:
        return any(folder in (self.metadata(i).get("partitionToWriteStats") or {}) for i in self.timeline.writes)

    def changes_by(self, instants: list[HudiInstant], since: RecordedState) -> Changes | None:
        """Return the changes by instants that completed since a recorded state; None if they do not show all."""
        if len(instants) > _TAIL_INSTANTS_MAX:
            return None
        touched: set[Group] = set()
        listed: set[str] = set()
        files: list[HudiFile] = []
        last = max((i.time for i in self.timeline.changes if i not in instants), default="")
        for instant in instants:
            if instant.action == RESTORE:
                return None
            if instant.action == ROLLBACK:
                rolled = self._groups_of_rollback(instant, since)
                if rolled is None:
                    return None
                touched |= rolled
                listed |= {partition for partition, _ in rolled}
            stats = list(self._stats(instant)) if instant.action != ROLLBACK else []
            if not stats and instant.action in (COMMIT, DELTA_COMMIT):
                return None  # the instant does not list the files that it wrote
            for partition, stat in stats:
                file = self._file(stat)
                if file is None:
                    if not stat.get("fileId"):
                        return None
                    touched.add((partition, stat["fileId"]))
                    listed.add(partition)
                    continue
                touched.add(file.group)
                files.append(file)
                is_first = file.log_version is None and stat.get("prevCommit") in (None, "", "null")
                if (self.is_merge_on_read and not is_first) or instant.time < last:
                    listed.add(file.partition)
        replaced = self._replaced(instants)
        self._has_listed = bool(listed)
        for partition in sorted(listed):
            files += [file for file in list_partition(self.storage, partition) if file.group in touched]
        live = self._view(replaced).live({file.path: file for file in files}.values())
        groups = sorted(touched | replaced)
        texts = self.columns.partition_texts([partition for partition, _ in groups]).to_pylist()
        pairs = zip(texts, (group_id for _, group_id in groups), strict=True)
        return Changes(self._table(live), frozenset(), frozenset(pairs))

    def _stats(self, instant: HudiInstant) -> Iterator[tuple[str, dict[str, Any]]]:
        for partition, stats in (self.metadata(instant).get("partitionToWriteStats") or {}).items():
            for stat in stats:
                if stat.get("fileId") or stat.get("path"):
                    yield partition, stat

    def _file(self, stat: Mapping[str, Any]) -> HudiFile | None:
        """Return the file of a write statistic; None if it names no file."""
        path, size = stat.get("path"), stat.get("fileSizeInBytes")
        if not path or not isinstance(size, int) or size <= 0:
            return None
        file = file_of(Entry(path, size, 0))
        return file if file is not None and stat.get("fileId") in (None, "", file.group_id) else None

    def _groups_of_rollback(self, instant: HudiInstant, since: RecordedState) -> set[Group] | None:
        """Return the groups of the logs that a rollback wrote; None if it undid a completed commit."""
        metadata, (last, pending) = self.metadata(instant), parsed(since.position)
        if any(time <= last and time not in pending for time in metadata.get("commitsRollback") or ()):
            return None
        groups: set[Group] = set()
        for partition, rolled in (metadata.get("partitionMetadata") or {}).items():
            for path in rolled.get("rollbackLogFiles") or ():
                file = file_of(Entry(posixpath.join(partition, posixpath.basename(path)), 0, 0))
                if file is not None:
                    groups.add(file.group)
        return groups

    def _replaced(self, instants: Iterable[HudiInstant]) -> frozenset[Group]:
        groups: set[Group] = set()
        for instant in instants:
            if instant.action == REPLACE_COMMIT:
                for partition, ids in (self.metadata(instant).get("partitionToReplaceFileIds") or {}).items():
                    groups.update((partition, group_id) for group_id in ids)
        return frozenset(groups)

    def _view(self, replaced: frozenset[Group]) -> View:
        return View(
            self.storage,
            self.timeline,
            replaced,
            merge_of(self.properties, self.columns.columns.schema),
            self._written_by,
            self._completed_at,
        )

    def _written_by(self, time: str) -> set[str] | None:
        for instant in self.timeline.writes:
            if instant.time == time:
                return {stat["path"] for _, stat in self._stats(instant) if stat.get("path")}
        return None

    def _completed_at(self, time: str) -> str | None:
        return self.timeline.completed_at.get(time) or self._archived.get(time)

    @cached_property
    def _archived(self) -> dict[str, str]:
        return self._reader.archived_completions(self.properties)

    def _table(self, files: list[SliceFile]) -> pa.Table:
        return log_files(
            [member.file.path for member in files],
            self.columns.partition_texts([member.file.partition for member in files]),
            [member.file.size_bytes for member in files],
            [None] * len(files),
            [_unreadable(member) for member in files],
            slices={
                "kind": [member.kind for member in files],
                "file_group": [member.file.group_id for member in files],
                "slice_instant": [member.slice_instant for member in files],
                "commit": [member.commit for member in files],
                "merge": [member.merge for member in files],
            },
        )


def _unreadable(member: SliceFile) -> str | None:
    """Return why Skipstone cannot read a base file."""
    if member.file.log_version is not None or member.file.ending == "parquet":
        return None
    return f"format:{member.file.ending}"
