"""The file-system view of a Hudi table at one state of its timeline: which files of each file group are read.

These are the latest base file of a completed commit, and the logs over it:

    layout 1    logs whose name contains the base's instant, or a later one, that of a pending compaction. A log may
                contain blocks of several commits, each with its own state.
    layout 2    logs of a commit that completed after the base was requested. A log belongs to one commit.

Bases, and logs of layout 2, of incomplete commits are left out. Logs of layout 1 without a block of a completed commit
are listed, as Hudi does, but contain nothing. A log of an unknown format may contain rows.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ....errors import NotReadableError
from ...state.manifest import BASE, DELETE, LOG, ROLLBACK
from ...storage import Entry, Storage
from ...storage.threads import prefetched
from .columns import is_set
from .log_blocks import COMMAND, CORRUPT, DATA, LogBlock, log_blocks
from .timeline import FOLDER, HudiTimeline

_BASE_NAME = re.compile(r"([A-Za-z0-9-]+)_([A-Za-z0-9-]+)_(\d+)\.(\w+)\Z", re.ASCII)
_LOG_NAME = re.compile(r"\.(.+)_(\d+)\.(log|archive)\.(\d+)(?:_(\d+-\d+-\d+)(.cdc)?)?\Z", re.ASCII)
_BASE_ENDINGS = (".parquet", ".orc", ".hfile", ".lance")
_PARTITION_MARK = ".hoodie_partition_metadata"
_FOLDERS_PASSED = {FOLDER, ".skipstone"}
_BOOTSTRAP_TIMES = re.compile(r"0{7,}\d\Z", re.ASCII)
_THREADS = 8

Group = tuple[str, str]  # partition path, file id


@dataclass(frozen=True)
class HudiFile:
    """A base or a log file, from its name.

    partition    its folder, relative to the table
    instant      of a base: the commit that wrote it; of a log, layout 1: the instant of its slice, layout 2: its commit
    log_version  the number of a log in its slice; None for a base
    """

    path: str
    size_bytes: int
    partition: str
    group_id: str
    instant: str
    ending: str
    log_version: int | None = None

    @property
    def group(self) -> Group:
        return self.partition, self.group_id


@dataclass(frozen=True)
class SliceFile:
    """A file of a group that is read, or is known to contain nothing.

    kind     "base", "log", "delete", "rollback", as in `state.manifest`
    merge    how the rows of a log merge with the base's
    """

    file: HudiFile
    kind: str
    slice_instant: str
    commit: str
    merge: str | None = None


def file_of(entry: Entry) -> HudiFile | None:
    """Parse the name of a file; None if it is neither a base nor a log. Raises NotReadableError for a data file with a
    name that Hudi does not use."""
    folder, name = posixpath.split(entry.path)
    log = _LOG_NAME.match(name)
    if log is not None:
        if log[3] == "archive" or log[6]:
            return None
        return HudiFile(entry.path, entry.size_bytes, folder, log[1], log[2], "log", int(log[4]))
    base = _BASE_NAME.match(name)
    if base is not None:
        return HudiFile(entry.path, entry.size_bytes, folder, base[1], base[3], base[4])
    if name.endswith(_BASE_ENDINGS) and not name.startswith((".", "_")):
        raise NotReadableError(
            f"{entry.path}: is in a partition of a Hudi table under a name that Hudi does not use; move it away, or "
            "read the table with what wrote it",
            paths=[entry.path],
        )
    return None


def list_partition(storage: Storage, partition: str) -> list[HudiFile]:
    """Return the bases and logs of one partition."""
    return _files(storage.list_folder(partition)[0])


def list_table(storage: Storage, timeline: HudiTimeline, is_partition_folder: Callable[[str], bool]) -> list[HudiFile]:
    """Return the bases and logs of all partitions. Raises NotReadableError if a folder contains files of completed
    commits and is neither marked nor known as a partition."""
    files: list[HudiFile] = []
    folders = [""]
    while folders:
        below: list[str] = []
        listings = prefetched(storage.list_folder, folders, _THREADS, "skipstone-list")
        for folder, (entries, names) in zip(folders, listings, strict=True):
            is_partition = any(_name(entry).startswith(_PARTITION_MARK) for entry in entries)
            if is_partition:
                files += _files(entries)
                continue  # Hudi looks no further below a partition
            odd = [file for entry in entries if (file := _named(entry)) and timeline.is_committed(file.instant)]
            if odd and is_partition_folder(folder):
                files += _files(entries)
            elif odd:
                raise NotReadableError(
                    f"{odd[0].path}: a file of a Hudi commit in a folder without {_PARTITION_MARK}: move it away if "
                    "it is a copy; else repair the partition ('repair addpartitionmeta' of Hudi's command line)",
                    paths=[file.path for file in odd],
                )
            below += [posixpath.join(folder, name) for name in names if name not in _FOLDERS_PASSED]
        folders = below
    return files


def _name(entry: Entry) -> str:
    return posixpath.basename(entry.path)


def _named(entry: Entry) -> HudiFile | None:
    is_base = _BASE_NAME.match(_name(entry)) is not None
    return file_of(entry) if is_base or _LOG_NAME.match(_name(entry)) else None


def _files(entries: Iterable[Entry]) -> list[HudiFile]:
    return [file for entry in entries if (file := file_of(entry)) is not None]


@dataclass
class View:
    """Decides which files are read.

    replaced         file groups that were replaced by others
    table_merge      how rows of whole-row logs merge with the base's: "whole", "partial" or "custom"
    written_by       layout 1 and 2: the paths of the bases that a commit recorded, by its time
    completed_at     layout 2: when an instant was completed, archived ones too
    """

    storage: Storage
    timeline: HudiTimeline
    replaced: frozenset[Group]
    table_merge: str
    written_by: Callable[[str], set[str] | None]
    completed_at: Callable[[str], str | None]

    def live(self, files: Iterable[HudiFile]) -> list[SliceFile]:
        """Return the files to read. `files`: every file of some groups."""
        groups: dict[Group, list[HudiFile]] = {}
        for file in files:
            if file.group not in self.replaced:
                groups.setdefault(file.group, []).append(file)
        live: list[SliceFile] = []
        candidates: list[tuple[HudiFile, HudiFile | None]] = []
        for members in groups.values():
            base = self._base(members)
            if base is not None:
                live.append(SliceFile(base, BASE, base.instant, base.instant))
            candidates += [(file, base) for file in members if self._is_over(file, base)]
        blocks = prefetched(
            lambda pair: log_blocks(self.storage, pair[0].path, pair[0].size_bytes),
            candidates,
            _THREADS,
            "skipstone-logs",
        )
        return live + self._logs([(log, base, read) for (log, base), read in zip(candidates, blocks, strict=True)])

    def _base(self, members: list[HudiFile]) -> HudiFile | None:
        bases = [f for f in members if f.log_version is None and self.timeline.is_committed(f.instant)]
        latest = max((f.instant for f in bases), default=None)
        same = [f for f in bases if f.instant == latest]
        if len(same) > 1:
            written = self.written_by(str(latest)) or set()
            same = [f for f in same if f.path in written]
            if len(same) != 1:
                raise NotReadableError(
                    f"{bases[0].path}: its file group has several base files of commit {latest}, and no metadata names "
                    "the one that counts; repair the table with Hudi's command line",
                    paths=[f.path for f in bases if f.instant == latest],
                )
        if same and _BOOTSTRAP_TIMES.match(same[0].instant):
            raise NotReadableError(
                f"{same[0].path}: the base of a bootstrapped table, whose rows are elsewhere; only Hudi reads it",
                paths=[same[0].path],
            )
        return same[0] if same else None

    def _is_over(self, file: HudiFile, base: HudiFile | None) -> bool:
        if file.log_version is None:
            return False
        if self.timeline.layout == 1:
            return base is None or file.instant >= base.instant
        if not self.timeline.is_committed(file.instant):
            return False
        if base is None or file.instant >= base.instant:
            return True
        completed = self.completed_at(file.instant)
        return completed is None or completed >= base.instant

    def _logs(self, logs: list[tuple[HudiFile, HudiFile | None, list[LogBlock] | None]]) -> list[SliceFile]:
        undone: dict[Group, set[str]] = {}
        for log, _, blocks in logs:
            targets = {b.target for b in blocks or () if b.kind == COMMAND and b.target is not None}
            undone.setdefault(log.group, set()).update(targets)
        files = []
        for log, base, blocks in logs:
            live = None if blocks is None else [b for b in blocks if self._is_live(b, undone[log.group])]
            slice_time = log.instant if self.timeline.layout == 1 else _slice_of(self.timeline, log, base)
            if base is not None and (slice_time < base.instant or len(slice_time) != len(base.instant)):
                slice_time = base.instant
            commit = next((b.instant for b in live or blocks or ()), log.instant)
            files.append(SliceFile(log, _kind(live), slice_time, commit, self._merge(live)))
        return files

    def _is_live(self, block: LogBlock, undone: set[str]) -> bool:
        if block.kind == COMMAND:
            return False
        if block.instant in self.timeline.committed:
            return True
        return self.timeline.is_committed(block.instant) and block.instant not in undone

    def _merge(self, live: list[LogBlock] | None) -> str:
        if live is None:
            return "custom"
        return "partial" if self.table_merge == "whole" and any(b.is_partial for b in live) else self.table_merge


def _kind(live: list[LogBlock] | None) -> str:
    """Return the kind of a log. `live`: its committed blocks; None if they are unknown."""
    if live is None or any(block.kind in (DATA, CORRUPT) for block in live):
        return LOG
    return DELETE if live else ROLLBACK


def _slice_of(timeline: HudiTimeline, log: HudiFile, base: HudiFile | None) -> str:
    """Layout 2: return the instant of a log's slice: that of the base, or of a pending write that was requested before
    the log's commit completed."""
    first = log.instant if base is None else base.instant
    end = timeline.completed_at.get(log.instant, log.instant)
    return max([first, *(time for time in timeline.pending if first < time <= end)])


def merge_of(properties: Mapping[str, str], schema: pa.Schema) -> str:
    """Return how the rows of logs merge with the base's: "whole" if the row of one file wins, "partial" if columns are
    taken from several, "custom" if unknown, or if hudi-rs merges them in another way than Hudi: it ignores deletes by
    `_hoodie_operation`, and ordering fields that it cannot compare."""
    if is_set(properties, "hoodie.allow.operation.metadata.field"):
        return "custom"
    if properties.get("hoodie.table.partial.update.mode", "").upper() not in ("", "NONE"):
        return "partial"
    mode = properties.get("hoodie.record.merge.mode", "").upper()
    payload = properties.get("hoodie.compaction.payload.class", "").rsplit(".", 1)[-1]
    if payload in ("PartialUpdateAvroPayload", "OverwriteNonDefaultsWithLatestAvroPayload"):
        return "partial"
    names = properties.get("hoodie.table.ordering.fields") or properties.get("hoodie.table.precombine.field") or ""
    if mode != "COMMIT_TIME_ORDERING" and not all(_is_ordered(schema, n.strip()) for n in names.split(",") if n):
        return "custom"
    if mode:
        return "whole" if mode in ("EVENT_TIME_ORDERING", "COMMIT_TIME_ORDERING") else "custom"
    return "whole" if payload in ("", "OverwriteWithLatestAvroPayload", "DefaultHoodieRecordPayload") else "custom"


def _is_ordered(schema: pa.Schema, name: str) -> bool:
    """Return whether hudi-rs compares a column's values, as Hudi does."""
    if schema.get_field_index(name) < 0:
        return False
    kind = schema.field(name).type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_date)
    return any(test(kind) for test in (*tests, pa.types.is_string, pa.types.is_timestamp))
