"""Hudi's timeline: its instants by their file names, and the metadata of completed ones.

    layout 1    .hoodie/<time>.<action>[.requested | .inflight]                      table versions up to 6
    layout 2    .hoodie/timeline/<time>_<completed at>.<action>, pending ones as above    table versions 8 and 9

Old instants are archived: an instant that is missing in the active timeline and is older than its first was completed.
Instants that a savepoint keeps may remain below archived ones, so they do not count as the first.
"""

from __future__ import annotations

import base64
import io
import json
import posixpath
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ....errors import NotATableError, NotReadableError
from ...storage import FileMissingError, Storage
from ..table_format import missing_package

FOLDER = ".hoodie"
COMMIT, DELTA_COMMIT, REPLACE_COMMIT = "commit", "deltacommit", "replacecommit"
CLEAN, ROLLBACK, RESTORE, SAVEPOINT = "clean", "rollback", "restore", "savepoint"
REQUESTED, INFLIGHT, COMPLETED = "requested", "inflight", "completed"
_WRITES = {COMMIT, DELTA_COMMIT, REPLACE_COMMIT}
_CHANGES_FILES = {*_WRITES, ROLLBACK, RESTORE}
_PENDING_WRITES = {*_WRITES, "compaction", "logcompaction", "clustering"}
_ACTIONS = {*_CHANGES_FILES, *_PENDING_WRITES, CLEAN, SAVEPOINT, "indexing", "schemacommit"}
_NAME = re.compile(r"(\d+)(?:_(\d+))?((?:\.\w+)+)\Z", re.ASCII)
_VERSIONS = {"5": "1", "6": "1", "8": "2", "9": "2"}  # table version -> layout
_MARKED_MAX = 1000
_AVRO = b"Obj\x01"
NO_MARK = "-"
EMPTY = "0"  # the time of a table without completed instants


@dataclass(frozen=True)
class HudiInstant:
    """One file of the timeline.

    time            when it was requested; it identifies the instant
    completed_at    layout 2: when it was completed
    """

    time: str
    action: str
    state: str
    completed_at: str | None
    path: str


@dataclass(frozen=True)
class HudiTimeline:
    """The active timeline up to a time, without some pending instants.

    latest      the time of the latest completed instant that changed files; EMPTY if there is none
    pending     times of pending writes before it
    changes     completed instants that changed files, ascending by time
    seen        names of all files of the active timeline, at any time
    start       the time before which instants were archived; None if nothing was completed
    layout      1 or 2
    cleans, savepoints    the completed ones, at any time
    completed_at          layout 2: when instants of the active timeline were completed
    committed             the times of the writes among `changes`
    later                 times of completed instants that changed files after `latest`
    """

    latest: str
    pending: frozenset[str]
    changes: tuple[HudiInstant, ...]
    seen: frozenset[str]
    start: str | None
    layout: int
    cleans: tuple[HudiInstant, ...] = ()
    savepoints: frozenset[str] = frozenset()
    completed_at: dict[str, str] = field(default_factory=dict)
    committed: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()

    @property
    def position(self) -> str:
        """The position of the state: its latest completed instant, and the earlier ones that were not complete."""
        return "~".join([self.latest, *sorted(self.pending)])

    @property
    def mark(self) -> str:
        """24 bits per completed instant, for at most the newest 1,000."""
        return _mark(self.changes) or NO_MARK

    @property
    def writes(self) -> list[HudiInstant]:
        """Completed instants that wrote files, ascending by time."""
        return [instant for instant in self.changes if instant.action in _WRITES]

    def is_committed(self, time: str) -> bool:
        """Return whether the files of a commit are live at this state."""
        if time > self.latest or time in self.pending:
            return False
        return time in self.committed or (self.start is not None and time < self.start)

    def since(self, position: str, mark: str) -> list[HudiInstant] | None:
        """Return the instants that completed since an earlier state, ascending. None if the timeline lost an instant
        that was complete then, except the oldest ones by archiving."""
        time, pending = parsed(position)
        if self.start is None or time < self.start or time > self.latest:
            return None
        completed = [i for i in self.changes if i.time <= time and i.time not in pending]
        if not completed or completed[-1].time != time or not mark.endswith(_mark(completed)):
            return None
        return [i for i in self.changes if i.time > time or i.time in pending]


def _mark(instants: Iterable[HudiInstant]) -> str:
    names = [i.path.rsplit("/", 1)[-1].encode() for i in instants][-_MARKED_MAX:]
    return base64.b64encode(b"".join((zlib.crc32(name) & 0xFFFFFF).to_bytes(3, "big") for name in names)).decode()


def parsed(position: str) -> tuple[str, frozenset[str]]:
    """Split a position into its time and the pending instants before it. Raises NotATableError."""
    time, *pending = position.split("~")
    if not all(part.isdecimal() and part.isascii() for part in (time, *pending)):
        raise NotATableError(f"{position!r} is not an instant of a Hudi timeline, such as 20260131235959999")
    return time, frozenset(pending)


class TimelineReader:
    """Reads the timeline of a table."""

    def __init__(self, storage: Storage):
        self._storage = storage

    def properties(self) -> dict[str, str]:
        """Return the table's properties. Raises NotATableError if there are none, NotReadableError for an unknown table
        version."""
        for name in ("hoodie.properties", "hoodie.properties.backup"):
            try:
                properties = parse_properties(self._storage.read(f"{FOLDER}/{name}").decode("utf-8", "replace"))
            except FileMissingError:
                continue
            if properties:
                self._check(properties)
                return properties
        raise NotATableError(f"{self._storage.uri}: no Hudi table there: no {FOLDER}/hoodie.properties")

    def _check(self, properties: dict[str, str]) -> None:
        version, path = properties.get("hoodie.table.version", ""), f"{self._storage.uri}/{FOLDER}/hoodie.properties"
        layout = properties.get("hoodie.timeline.layout.version", _VERSIONS.get(version))
        if version not in _VERSIONS or layout != _VERSIONS[version]:
            raise NotReadableError(
                f"{path}: table version {version or 'unknown'} with timeline layout {layout or 'unknown'} is not "
                f"supported ({', '.join(_VERSIONS)} are); read it with Hudi, or upgrade the table",
                paths=[f"{FOLDER}/hoodie.properties"],
            )
        odd = {
            "hoodie.bootstrap.base.path": "its rows are in the files of the table that it was bootstrapped from",
            "hoodie.table.multiple.base.file.formats.enable": "its base files are of several formats",
        }
        for name, reason in odd.items():
            if properties.get(name, "false") not in ("", "false"):
                raise NotReadableError(f"{path}: {name} is set: {reason}, which only Hudi reads", paths=[path])

    def read(self, properties: dict[str, str], position: str | None) -> HudiTimeline:
        """Return the timeline at a position, or the latest. Raises NotReadableError for an unknown action,
        NotATableError for a position that does not exist or was archived or cleaned."""
        instants, seen = self._listed(properties)
        changes = [i for i in instants if i.state == COMPLETED and i.action in _CHANGES_FILES]
        savepoints = frozenset(i.time for i in instants if i.action == SAVEPOINT and i.state == COMPLETED)
        writes = [i.time for i in changes if i.action in _WRITES]
        start = next((time for time in writes if time not in savepoints), writes[0] if writes else None)
        latest, left_out = (changes[-1].time if changes else EMPTY, frozenset[str]())
        if position is not None and position != EMPTY:
            latest, left_out = parsed(position)
            latest = max((i.time for i in changes if i.time <= latest), default="")
            if not latest or start is None or (latest < start and latest not in savepoints):
                raise NotATableError(
                    f"{self._storage.uri}: its Hudi timeline has nothing at {position}; it was archived"
                )
        later = frozenset(i.time for i in changes if i.time > latest)
        changes = [i for i in changes if i.time <= latest and i.time not in left_out]
        done = {i.time for i in changes}
        pending = {i.time for i in instants if i.action in _PENDING_WRITES and i.time < latest} - done
        return HudiTimeline(
            latest,
            frozenset(pending),
            tuple(changes),
            seen,
            start,
            _layout(properties),
            tuple(i for i in instants if i.action == CLEAN and i.state == COMPLETED),
            savepoints,
            {i.time: i.completed_at for i in instants if i.completed_at is not None},
            frozenset(i.time for i in changes if i.action in _WRITES),
            later,
        )

    def _listed(self, properties: dict[str, str]) -> tuple[list[HudiInstant], frozenset[str]]:
        folder = FOLDER
        if _layout(properties) == 2:
            folder = f"{FOLDER}/{properties.get('hoodie.timeline.path', 'timeline')}"
        files, _ = self._storage.list_folder(folder)
        instants = []
        for file in files:
            match = _NAME.match(file.path.rsplit("/", 1)[-1])
            if match is not None:
                instants.append(self._instant(match, file.path))
        instants.sort(key=lambda i: (i.time, i.state == COMPLETED))
        return instants, frozenset(i.path for i in instants)

    def _instant(self, match: re.Match, path: str) -> HudiInstant:
        time, completed_at, ending = match[1], match[2], match[3][1:].split(".")
        state = ending.pop() if ending[-1] in (REQUESTED, INFLIGHT) else COMPLETED
        action = ".".join(ending) or COMMIT  # a commit in flight is <time>.inflight alone
        if action not in _ACTIONS:
            raise NotReadableError(
                f"{self._storage.uri}/{path}: an unknown action of Hudi, which may change which files are "
                "live; read the table with Hudi",
                paths=[path],
            )
        return HudiInstant(time, action, state, completed_at, path)

    def metadata(self, instant: HudiInstant) -> dict[str, Any]:
        """Return the metadata of a completed instant (JSON or Avro). Raises NotReadableError if it is neither,
        InvalidArgumentError if the package for Avro is missing."""
        data = self._storage.read(instant.path)
        read = _avro_reader() if data.startswith(_AVRO) else None
        try:
            metadata = json.loads(data or b"{}") if read is None else next(read(io.BytesIO(data)))
        except (ValueError, LookupError, TypeError, EOFError, StopIteration, RecursionError):
            metadata = None
        if not isinstance(metadata, dict) or not _is_well_formed(metadata):
            raise NotReadableError(
                f"{self._storage.uri}/{instant.path}: not the metadata of a completed {instant.action}, so the files "
                "that it wrote are unknown: repair the timeline with Hudi's command line",
                paths=[instant.path],
            )
        return metadata

    def archived_completions(self, properties: dict[str, str]) -> dict[str, str]:
        """Layout 2: return the completion times of archived instants, from the timeline's history."""
        import pyarrow.parquet as pq

        timeline = f"{FOLDER}/{properties.get('hoodie.timeline.path', 'timeline')}"
        folder = f"{timeline}/{properties.get('hoodie.timeline.history.path', 'history')}"
        completions: dict[str, str] = {}
        with suppress(
            FileMissingError, ValueError, LookupError, TypeError, pa.ArrowException
        ):  # a commit that the history lacks may be live
            version = self._storage.read(f"{folder}/_version_").decode().strip()
            for file in json.loads(self._storage.read(f"{folder}/manifest_{version}"))["files"]:
                data = io.BytesIO(self._storage.read(f"{folder}/{file['fileName']}"))
                rows = pq.read_table(data, columns=["instantTime", "completionTime"])
                completions.update(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        return completions


def _layout(properties: dict[str, str]) -> int:
    return int(_VERSIONS[properties["hoodie.table.version"]])


def _avro_reader() -> Callable[[io.BytesIO], Iterator]:
    try:
        import fastavro
    except ImportError as error:
        raise missing_package("fastavro", "hudi") from error
    return fastavro.reader


def _is_well_formed(metadata: dict[str, Any]) -> bool:
    """Return whether the metadata of a commit has the types and paths that Hudi writes."""
    stats, replaced = metadata.get("partitionToWriteStats") or {}, metadata.get("partitionToReplaceFileIds") or {}
    extra, rolled_back = metadata.get("extraMetadata") or {}, metadata.get("partitionMetadata") or {}
    if not all(isinstance(part, dict) for part in (stats, replaced, extra, rolled_back)):
        return False
    if not all(_is_inside(partition) for partition in (*stats, *replaced, *rolled_back)):
        return False
    for written in stats.values():
        if not isinstance(written, list) or not all(isinstance(stat, dict) for stat in written):
            return False
        for stat in written:
            if not isinstance(stat.get("fileId"), str | None) or not _is_inside(stat.get("path") or ""):
                return False
    ids = [group_id for given in replaced.values() for group_id in given]
    return all(isinstance(text, str) for text in (*ids, extra.get("schema") or ""))


def _is_inside(path: object) -> bool:
    """Return whether a path is normalized and below the table."""
    if not isinstance(path, str) or path.startswith(("/", "../")):
        return False
    return path == "" or (posixpath.normpath(path) == path and path != "..")


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the entries of a Java properties file (java.util.Properties: escapes, comments, continued lines)."""
    entries = {}
    lines = iter(text.splitlines())
    for line in lines:
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, "").lstrip()
        match = re.match(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*(.*)", line, re.DOTALL)
        assert match is not None
        entries[_unescaped(match[1])] = _unescaped(match[2])
    return entries


def _unescaped(text: str) -> str:
    def one(match: re.Match) -> str:
        return chr(int(match[1][1:], 16)) if len(match[1]) == 5 else _ESCAPES.get(match[1], match[1])

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)
