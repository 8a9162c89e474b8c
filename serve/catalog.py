"""The tables of a catalog: a TOML file, and what is kept of each table between requests.

    [tables."lake.events"]         namespace lake, table events
    path = "/data/events"          relative to the file's folder
    index_path, storage_options    optional, as in `skipstone.open`
    manifests = "auto"             true, false, or "auto": if the snapshots have few files
"""

from __future__ import annotations

import os
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.lakes import DIRECTORY, ICEBERG
from ..engine.open import open_table
from ..engine.storage.places import is_uri
from ..errors import InvalidArgumentError, NotATableError, SkipstoneError, StorageError
from .manifests import write_manifests
from .plans import CheckedFiles, PlanRequest, plan
from .presented import PLANNING, Presented, Snapshot, log_version_of

Name = tuple[str, ...]
_KEYS = ("path", "index_path", "storage_options", "manifests")
_FILES_MAX = 10_000  # of the snapshots of a table whose manifests are written unasked
_CHECKED_MAX = 1_000_000
_TOO_MANY = "so many files are named only in manifests that the catalog asks for: manifests = true"


@dataclass
class ServedTable:
    """A table of the catalog. Threads share one; each request reads one version.

    name         namespace and name
    location     the table's directory or URI
    options      of `skipstone.open`
    manifests    True, False or "auto"
    """

    name: Name
    location: str
    options: dict[str, Any]
    manifests: bool | str = "auto"
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _newest: Presented | None = None
    _known: dict[int, Snapshot] = field(default_factory=dict)
    _written: dict[int, tuple[str, int] | str] = field(default_factory=dict)  # by snapshot; a text: why there are none
    _checked: CheckedFiles = field(default_factory=dict)

    def newest(self) -> Presented:
        """Return the table at the newest version, with the newest state of its log. Raises as `skipstone.open`."""
        newest = Presented(open_table(self.location, **self.options), self._known)
        with self._lock:
            last = self._newest
            if last is not None and _state_of(last) == _state_of(newest):
                return last  # what was read of it stays in memory
            if last is not None and last.instant.table_id != newest.instant.table_id:
                self._known = newest._known = {}
            if last is None or len(self._checked) > _CHECKED_MAX or last.mapping.to_json() != newest.mapping.to_json():
                self._written, self._checked = {}, {}  # what is right by one mapping may be wrong by another
            self._newest = newest
            return newest

    def at(self, snapshot_id: int | None, current: Presented) -> Presented:
        """Return the table at a snapshot. Raises InvalidArgumentError if there is none of that id."""
        if snapshot_id is None or snapshot_id == current.snapshot_id:
            return current
        is_directory = current.kind == DIRECTORY
        number = snapshot_id if is_directory else log_version_of(current.kind, snapshot_id)
        try:
            options = {**self.options, "version" if is_directory else "log_version": number}
            return Presented(open_table(self.location, **options))
        except NotATableError as error:
            raise InvalidArgumentError(f"no snapshot {snapshot_id}: {error.bare_message}") from error

    def plan(self, request: PlanRequest) -> dict[str, Any]:
        """Return the scan tasks of a request. Raises as `plans.plan` and `at`."""
        current = self.newest()
        return plan(current, self.at(request.snapshot_id, current), request, self._checked)

    def load(self) -> dict[str, Any]:
        """Return the protocol's LoadTableResult. Raises SchemaError for columns that cannot be presented."""
        current = self.newest()
        metadata = current.metadata if current.kind == ICEBERG else self._with_manifests(current)
        return {"metadata-location": current.metadata_location, "metadata": metadata, "config": dict(PLANNING)}

    def _with_manifests(self, current: Presented) -> dict[str, Any]:
        """The metadata with the manifests that are written, those of the newest snapshots first."""
        snapshots, files_left, reasons = [], _FILES_MAX, []
        for snapshot in reversed(current.metadata["snapshots"]):
            files_left -= int(snapshot["summary"]["total-data-files"])
            written: tuple[str, int] | str = _TOO_MANY
            if self.manifests is True or (self.manifests == "auto" and files_left >= 0):
                written = self._manifests_of(snapshot["snapshot-id"], current)
            if isinstance(written, str):
                reasons.append(written)
            else:
                snapshot = {**snapshot, "manifest-list": written[0]}
            snapshots.append(snapshot)
        why = {"skipstone.manifests": f"not written: {reasons[0]}"} if reasons else {}
        properties = {**current.metadata["properties"], **why}
        return {**current.metadata, "snapshots": snapshots[::-1], "properties": properties}

    def _manifests_of(self, number: int, current: Presented) -> tuple[str, int] | str:
        written = self._written.get(number)
        if written is not None:
            return written
        try:
            written = write_manifests(current, self.at(number, current), self._checked)
        except StorageError as error:  # which may be over at the next request
            return error.bare_message
        except SkipstoneError as error:
            written = error.bare_message
        return self._written.setdefault(number, written)


def _state_of(presented: Presented) -> tuple:
    instant = presented.handle.instant
    return instant.version, instant.transaction, presented.handle.log_position


class Catalog:
    """The tables, and the namespaces that they are in."""

    def __init__(self, tables: Mapping[Name, ServedTable]):
        self.tables = dict(tables)
        self.namespaces = {name[:depth] for name in self.tables for depth in range(1, len(name))}

    @classmethod
    def of(cls, config: str | os.PathLike[str] | Mapping[str, Any]) -> Catalog:
        """Read a catalog: a TOML file, or a dict with what it has under `tables`.

        Raises InvalidArgumentError for a file that cannot be read, and for anything in it that has no meaning.
        """
        folder, document = Path(), {"tables": config}
        if isinstance(config, (str, os.PathLike)):
            try:
                document = tomllib.loads(Path(config).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise InvalidArgumentError(f"{os.fspath(config)}: the catalog cannot be read ({error})") from error
            folder = Path(config).resolve().parent
        entries = document.get("tables")
        if not isinstance(entries, Mapping) or not entries or len(document) > 1:
            raise InvalidArgumentError('a catalog contains tables only: [tables."lake.events"] with path = "..."')
        return cls({one.name: one for one in (_table(name, entry, folder) for name, entry in entries.items())})


def _table(name: str, entry: Any, folder: Path) -> ServedTable:
    entry = {"path": entry} if isinstance(entry, (str, os.PathLike)) else entry
    parts = tuple(name.split("."))
    if len(parts) < 2 or not all(part and not set(part) & set("/\x1f%") for part in parts):
        raise InvalidArgumentError(f'{name!r} names no table: write namespace.name, as in [tables."lake.events"]')
    if not isinstance(entry, Mapping) or "path" not in entry or set(entry) - set(_KEYS):
        raise InvalidArgumentError(f"table {name!r}: it has path, and may have {', '.join(_KEYS[1:])}; nothing else")
    options, manifests = entry.get("storage_options"), entry.get("manifests", "auto")
    is_options = options is None or (isinstance(options, Mapping) and all(isinstance(v, str) for v in options.values()))
    if not is_options or manifests not in (True, False, "auto"):
        raise InvalidArgumentError(f'table {name!r}: storage_options has texts; manifests is true, false or "auto"')
    index_path = None if entry.get("index_path") is None else _place(entry["index_path"], folder)
    options = {"index_path": index_path, "storage_options": options}
    return ServedTable(parts, _place(entry["path"], folder), options, manifests)


def _place(path: Any, folder: Path) -> str:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidArgumentError(f"{path!r} is no path")
    text = os.fspath(path)
    return text if is_uri(text) or text.startswith("file:") else str(folder / text)
