"""The tables of a catalog: a TOML file, and the state of each table between requests.

[tables."lake.events"]         namespace lake, table events
path = "/data/events"          relative to the file's folder
index_path, storage_options    optional, as in `skipstone.open`
manifest_files = 10000         write manifests of the newest snapshots, up to so many files in total
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.lakes import DELTA, DIRECTORY, ICEBERG
from ..engine.open import open_table
from ..engine.storage.places import is_uri
from ..errors import InvalidArgumentError, SkipstoneError, is_integer
from .manifests import write_manifests
from .plans import CheckedFiles, plan
from .presented import PLANNING, IcebergView, Snapshot

Name = tuple[str, ...]
_KEYS = ("path", "index_path", "storage_options", "manifest_files")
_CHECKED_MAX = 1_000_000  # files


@dataclass
class ServedTable:
    """A table of the catalog: its place, options of `skipstone.open`, and `manifest_files` as in the catalog. Threads
    share one; each request reads one version."""

    location: str
    options: dict[str, Any]
    manifest_files: int
    _newest: IcebergView | None = None
    _known: dict[int, Snapshot | None] = field(default_factory=dict)
    _written: dict[tuple, str] = field(default_factory=dict)  # the list of manifests of each snapshot
    _checked: CheckedFiles = field(default_factory=dict)

    def newest(self) -> IcebergView:
        """Return the table at the newest version, with the newest state of its log. Raises as `skipstone.open`."""
        newest, last = IcebergView(open_table(self.location, **self.options), self._known), self._newest
        if last is not None and last.state == newest.state:
            return last  # with the parts of it that are in memory
        if last is not None and last.instant.table_id != newest.instant.table_id:
            self._known = newest._known = {}
        if len(self._checked) > _CHECKED_MAX:
            self._checked = {}
        self._newest = newest
        return newest

    def at(self, snapshot_id: int | None, current: IcebergView) -> IcebergView:
        """Return the table at a snapshot. Raises InvalidArgumentError for one that the metadata do not list."""
        if snapshot_id is None or snapshot_id == current.snapshot_id:
            return current
        if snapshot_id not in (one["snapshot-id"] for one in current.metadata.get("snapshots") or ()):
            raise InvalidArgumentError(f"the table has no snapshot {snapshot_id}")
        name = "version" if current.kind == DIRECTORY else "log_version"
        options = {**self.options, name: snapshot_id - (current.kind == DELTA)}
        return IcebergView(open_table(self.location, **options))

    def plan(self, request: dict[str, Any], *, is_raw: bool) -> dict[str, Any]:
        """Return the answer to a request, as `plans.checked_request` returns it. Raises as `plans.plan` and `at`."""
        current = self.newest()
        planned = self.at(request.get("snapshot-id"), current)
        return plan(current, planned, request, self._checked, is_raw=is_raw)

    def load(self) -> dict[str, Any]:
        """Return the protocol's LoadTableResult. Raises SchemaError for columns that cannot be presented."""
        current = self.newest()
        answer = {"metadata-location": current.metadata_location, "metadata": current.metadata, "config": PLANNING}
        if current.kind == ICEBERG:
            return answer
        snapshots, files_left, properties = [], self.manifest_files, dict(current.metadata["properties"])
        for snapshot in reversed(current.metadata["snapshots"]):
            # Manifests that are right with one mapping of names may be wrong with another.
            key = current.instant.table_id, snapshot["snapshot-id"], properties["schema.name-mapping.default"]
            files_left -= int(snapshot["summary"]["total-data-files"])
            try:
                if key not in self._written:
                    if files_left < 0:
                        raise InvalidArgumentError("more than manifest_files files; raise manifest_files")
                    self._written[key] = write_manifests(current, self.at(key[1], current), self._checked)
                snapshot = {**snapshot, "manifest-list": self._written[key]}
            except SkipstoneError as error:
                properties.setdefault("skipstone.manifests", f"not written: {error.bare_message}")
            snapshots.append(snapshot)
        metadata = {**current.metadata, "snapshots": snapshots[::-1], "properties": properties}
        return {**answer, "metadata": metadata}


def read_catalog(config: str | os.PathLike[str] | Mapping[str, Any]) -> dict[Name, ServedTable]:
    """Return the tables of a TOML file, or of a dict with what the file has under `tables`. Raises InvalidArgumentError
    for a file that cannot be read, and for anything in it that has no meaning."""
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
    return {tuple(name.split(".")): _table(name, entry, folder) for name, entry in entries.items()}


def _table(name: str, entry: Any, folder: Path) -> ServedTable:
    entry = entry if isinstance(entry, Mapping) else {"path": entry}
    options, files = entry.get("storage_options") or {}, entry.get("manifest_files", 10_000)
    parts, paths = name.split("."), [entry.get(key) for key in _KEYS[:2]]
    problems = {
        "a name is namespace.table": len(parts) < 2 or not all(parts) or bool(set(name) & set("/\x1f%")),
        f"an entry has path, and may have {', '.join(_KEYS[1:])}": "path" not in entry or bool(set(entry) - set(_KEYS)),
        "paths are texts": not all(path is None or isinstance(path, (str, os.PathLike)) for path in paths),
        "storage_options has texts": not (
            isinstance(options, Mapping) and all(isinstance(v, str) for v in options.values())
        ),
        "manifest_files is a number": not is_integer(files),
    }
    for rule, is_broken in problems.items():
        if is_broken:
            raise InvalidArgumentError(f"table {name!r} of the catalog: {rule}")
    path, index_path = (
        one if one is None or is_uri(str(one)) or str(one).startswith("file:") else str(folder / one) for one in paths
    )
    return ServedTable(str(path), {"index_path": index_path, "storage_options": dict(options) or None}, files)
