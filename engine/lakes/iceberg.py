"""Iceberg tables: live files through `pyiceberg`, from the metadata files in the table's directory.

The latest state is the newest metadata file: the one that `version-hint.text` names (tables of a Hadoop catalog), or
otherwise the one with the highest number. If a catalog decides which metadata file counts, name that file instead of
the directory (pyiceberg's `table.metadata_location`): a failed commit may have left one with a higher number.

Changes between two snapshots are the manifests that only one of them has. An unchanged table costs one or two requests.
If there are delete files, or the earlier snapshot expired, every manifest is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...base.arrays import to_numpy
from ...base.caching import cached_property
from ...errors import CorruptionError, NotATableError, NotReadableError
from ..hive import partition_texts
from ..storage import FileMissingError, Storage
from ..storage.threads import prefetched
from . import ICEBERG, METADATA_ENDING
from .column_naming import Columns
from .iceberg_catalog import CatalogTable, live_entries, manifests_of, metadata_text, pyiceberg_options, static_table
from .iceberg_columns import (
    columns_of,
    log_only_columns,
    partition_ids,
    partition_value,
    typed_values,
    unpartitioned_specs,
)
from .table_format import Changes, LogState, RecordedState, file_fingerprint, log_files, storage_errors, table_path

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table import StaticTable, Table

_FOLDER = "metadata"
_SNAPSHOT = "#snapshot="  # in a position: separates a metadata file and an older snapshot in it
_HINT = f"{_FOLDER}/version-hint.text"
_HINT_BYTES_MAX, _DIGITS_MAX = 4096, 18
_ENDINGS = (METADATA_ENDING, ".gz.metadata.json", ".metadata.json.gz")
_NUMBERED = re.compile(r"v?(\d+)(?:-.*)?(?:\.gz)?\.metadata\.json(?:\.gz)?\Z", re.ASCII)
_DELETED_PATH_ID = 2147483546  # reserved field id of `file_path` in position delete files


class IcebergSource:
    """The metadata of one Iceberg table; see `LogSource`."""

    def __init__(
        self, storage: Storage, options: Mapping[str, str] | None, metadata: str | Callable[[], str] | None = None
    ):
        self._storage, self._options, self._metadata = storage, pyiceberg_options(options or {}), metadata
        self._named = metadata if isinstance(metadata, str) else None  # the last metadata file

    @property
    def location(self) -> str:
        is_inside = self._named is not None and self._named.startswith(f"{_FOLDER}/")
        return f"{self._storage.uri}/{self._named}" if is_inside else self._storage.uri

    @property
    def catalog_table(self) -> CatalogTable | None:
        """The table in its catalog, for commits; None if the table was not opened through a catalog."""
        table = self._metadata
        return table if isinstance(table, CatalogTable) and table.has_catalog else None

    def data_files(self, table: Table) -> dict[str, DataFile]:
        """Return the live data files of a table object's current snapshot, by their paths in Skipstone's manifest."""
        with storage_errors(self._storage, "pyiceberg"):
            manifests = _Manifests.of(table, None if (now := table.current_snapshot()) is None else now.snapshot_id)
            entries = (entry for manifest in manifests.data.values() for entry in live_entries(table.io, manifest))
            return {table_path(self._storage, e.data_file.file_path): e.data_file for e in entries}

    def state_at(self, position: str | None, since: RecordedState | None) -> LogState | None:
        position = position or self._latest()
        mark = self._mark(position)
        if since is not None and since.position == position and since.mark == mark:
            return None
        with storage_errors(self._storage, "pyiceberg"):
            snapshot = self._snapshot(position)
            changes = None if since is None else snapshot.changes_since(since)
            return LogState(
                ICEBERG,
                snapshot.version,
                position,
                snapshot.table_id,
                mark,
                snapshot.columns,
                Changes(snapshot.live_files(), None) if changes is None else changes,
                snapshot.live_files,
            )

    def position_of(self, log_version: int) -> str:
        position = f"{self._latest()}{_SNAPSHOT}{log_version}"
        self._mark(position)
        with storage_errors(self._storage, "pyiceberg"):
            self._snapshot(position)
        return position

    def deleted_rows(self, position: str | None, paths: Sequence[str]) -> dict[str, np.ndarray]:
        position = position or self._latest()
        self._mark(position)
        with storage_errors(self._storage, "pyiceberg"):
            return self._snapshot(position).deleted_rows(paths)

    def metadata_text(self, position: str | None) -> tuple[str, bytes]:
        """Return where the metadata file of a position is, and its text. Raises as `state_at`."""
        path = (position or self._latest()).partition(_SNAPSHOT)[0]
        with storage_errors(self._storage, "pyiceberg"):
            table = static_table(self._storage, path, self._options)
            return table.metadata_location, metadata_text(table.io, table.metadata_location)

    def live_entries(self, position: str | None) -> dict[str, tuple[ManifestEntry, list[ManifestEntry]]]:
        """Return the manifest entry of each live file by its path, with the deletes that may apply to it. Raises as
        `state_at`."""
        with storage_errors(self._storage, "pyiceberg"):
            snapshot = self._snapshot(position or self._latest())
            return {table_path(self._storage, e.data_file.file_path): (e, deletes) for e, deletes in snapshot.entries()}

    def _mark(self, position: str) -> str:
        """Return the mark of a position. Raises NotATableError if its metadata file does not exist."""
        path = position.partition(_SNAPSHOT)[0]
        mark = file_fingerprint(self._storage, path)
        if mark is None:
            raise NotATableError(f"{self._storage.uri}: no Iceberg metadata at {path}; it may have expired")
        return mark

    def _snapshot(self, position: str) -> _Snapshot:
        path, _, snapshot_id = position.partition(_SNAPSHOT)
        table = static_table(self._storage, path, self._options)
        if snapshot_id:
            _select_snapshot(table, int(snapshot_id), self._storage.uri)
        return _Snapshot(self._storage, table)

    def _latest(self) -> str:
        """Return the newest metadata file, relative to the table."""
        if self._metadata is not None:
            self._named = self._metadata if isinstance(self._metadata, str) else self._metadata()
            return self._named
        with contextlib.suppress(FileMissingError):
            hint = self._storage.read(_HINT, _HINT_BYTES_MAX).decode("utf-8", "replace").strip()
            if not (hint.isascii() and hint.isdecimal() and len(hint) <= _DIGITS_MAX):
                return f"{_FOLDER}/{hint}" if hint.endswith(METADATA_ENDING) else f"{_FOLDER}/{hint}{METADATA_ENDING}"
            number = int(hint)  # a hint may be outdated, never too new
            path = self._hadoop_path(number) or f"{_FOLDER}/v{number}{METADATA_ENDING}"
            while newer := self._hadoop_path(number + 1):
                path, number = newer, number + 1
            return path
        files, _ = self._storage.list_folder(_FOLDER)
        numbered = [(int(match[1]), f.path) for f in files if (match := _NUMBERED.match(f.path.rsplit("/", 1)[-1]))]
        if not numbered:
            raise NotATableError(f"{self._storage.uri}: no Iceberg table there: no {_FOLDER}/*{METADATA_ENDING}")
        newest = max(number for number, _ in numbered)
        paths = [path for number, path in numbered if number == newest]
        if len(paths) > 1:
            raise NotReadableError(
                f"{self._storage.uri}: {len(paths)} metadata files have number {newest}, and only the catalog records "
                "which one counts: pass its path instead of the table's",
                paths=paths,
            )
        return paths[0]

    def _hadoop_path(self, number: int) -> str | None:
        """Return the metadata file of a number in a table of a Hadoop catalog; None if there is none."""
        paths = [f"{_FOLDER}/v{number}{ending}" for ending in _ENDINGS]
        threads = len(paths) if self._storage.is_remote else 0  # so that a store is waited for once
        found = prefetched(self._exists, paths, threads, "skipstone-metadata")
        return next((path for path, exists in zip(paths, list(found), strict=True) if exists), None)

    def _exists(self, path: str) -> bool:
        with contextlib.suppress(FileMissingError):
            self._storage.stat(path)
            return True
        return False


class _Snapshot:
    """The current snapshot of a metadata file. Its manifests are read on demand and cached."""

    def __init__(self, storage: Storage, table: StaticTable):
        self.storage, self.table = storage, table
        snapshot = table.current_snapshot()
        self.version = None if snapshot is None else snapshot.snapshot_id
        self.table_id = str(table.metadata.table_uuid)

    def deleted_rows(self, paths: Sequence[str]) -> dict[str, np.ndarray]:
        """See `LogSource.deleted_rows`."""
        deletes_index, wanted = self._delete_index(self._manifests.deletes.values()), set(paths)
        files: dict[str, pa.Table] = {}
        rows_of = {}
        for entry in self._live:
            path = table_path(self.storage, entry.data_file.file_path)
            deletes = deletes_index.deletes_of(entry) if path in wanted and _unreadable(entry) is None else []
            if deletes and all(_contains_positions(d) for d in deletes):
                rows = [self._positions(d.data_file.file_path, entry.data_file.file_path, files) for d in deletes]
                rows_of[path] = np.unique(np.concatenate(rows))
        return rows_of

    def _positions(self, deletes: str, path: str, files: dict[str, pa.Table]) -> np.ndarray:
        """Return the rows that a position delete file deletes from a data file. `files`: a cache of delete files."""
        if deletes not in files:
            with self.table.io.new_input(deletes).open() as file:
                files[deletes] = pq.read_table(file, columns=["file_path", "pos"])
            if any(column.null_count for column in files[deletes].columns):
                raise CorruptionError("a delete without a path or position", path=deletes, check="position deletes")
        of_file = files[deletes].filter(pc.equal(files[deletes].column("file_path"), path))
        return to_numpy(of_file.column("pos").cast(pa.int64()))

    # -- files --------------------------------------------------------------------------------------------------------

    def entries(self) -> Iterator[tuple[ManifestEntry, list[ManifestEntry]]]:
        """Yield the entry of each live file, and the deletes that may apply to it."""
        deletes_index = self._delete_index(self._manifests.deletes.values())
        yield from ((entry, deletes_index.deletes_of(entry)) for entry in self._live)

    @cached_property
    def _manifests(self) -> _Manifests:
        return _Manifests.of(self.table, self.version)

    @cached_property
    def _live(self) -> list[ManifestEntry]:
        return self._entries(self._manifests.data.values())

    def _entries(self, manifests: Iterable[ManifestFile]) -> list[ManifestEntry]:
        return [entry for manifest in manifests for entry in live_entries(self.table.io, manifest)]

    def _delete_index(self, manifests: Iterable[ManifestFile]) -> _DeleteIndex:
        return _DeleteIndex(self._entries(manifests), unpartitioned_specs(self.table))

    def live_files(self) -> pa.Table:
        """Return every live file (LOG_FILES)."""
        return self._files(self._live, self._manifests.deletes)

    def changes_since(self, last: RecordedState) -> Changes | None:
        """Return the changes since a recorded state; None if the differing manifests do not show them."""
        if last.table_id != self.table_id:
            return None
        if last.version == self.version:
            return Changes(self._files([], {}), frozenset())
        if [field.name for _, field in last.partitioning] != list(self.columns.partitioning):
            return None
        if last.version is not None and self.table.snapshot_by_id(last.version) is None:
            return None
        try:
            before, now = _Manifests.of(self.table, last.version), self._manifests
            if before.deletes or now.deletes:
                return None
            gone = self._entries(m for path, m in before.data.items() if path not in now.data)
        except (OSError, ValueError):  # a manifest of the earlier snapshot was removed
            return None
        added_entries = {
            e.data_file.file_path: e for e in self._entries(now.data[p] for p in now.data if p not in before.data)
        }
        moved = ((e, added_entries[path]) for e in gone if (path := e.data_file.file_path) in added_entries)
        kept = {e.data_file.file_path for e, now in moved if _partition_key(e) == _partition_key(now)}
        added = [entry for path, entry in added_entries.items() if path not in kept]
        removed_paths = {entry.data_file.file_path for entry in gone} - kept
        return Changes(self._files(added, {}), frozenset(table_path(self.storage, path) for path in removed_paths))

    def _files(self, entries: list[ManifestEntry], deletes: Mapping[str, ManifestFile]) -> pa.Table:
        columns, files = self.columns, [entry.data_file for entry in entries]
        values = [
            typed_values([partition_value(self.table, f, field) for f in files], columns.schema.field(name).type)
            for name, field in zip(columns.partitioning, self._partition_ids, strict=True)
        ]
        deletes_index = self._delete_index(deletes.values())
        return log_files(
            [table_path(self.storage, file.file_path) for file in files],
            partition_texts(columns.partitioning, values, len(files)),
            [file.file_size_in_bytes for file in files],
            [file.record_count for file in files],
            [_unreadable(entry) or deletes_index.token(entry) for entry in entries],
            [self._log_only[file.spec_id] for file in files],
        )

    @cached_property
    def _log_only(self) -> dict[int, list[str] | None]:
        """Return, per spec, the columns with an identity transform, except the table's partition columns."""
        return log_only_columns(self.table, self._partition_ids)

    # -- columns ------------------------------------------------------------------------------------------------------

    @cached_property
    def columns(self) -> Columns:
        """The table's columns at this snapshot."""
        return columns_of(self.table, self._partition_ids)

    @cached_property
    def _partition_ids(self) -> tuple[int, ...]:
        """Field ids of the partition columns: those with an identity transform in the spec of every live file."""
        manifests = [*self._manifests.data.values(), *self._manifests.deletes.values()]
        specs = {m.partition_spec_id for m in manifests} | {self.table.spec().spec_id}
        return partition_ids(self.table, specs)


@dataclass
class _Manifests:
    """The manifests of a snapshot, by path."""

    data: dict[str, ManifestFile]
    deletes: dict[str, ManifestFile]

    @classmethod
    def of(cls, table: Table, snapshot_id: int | None) -> _Manifests:
        from pyiceberg.manifest import ManifestContent

        snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
        manifests = cls({}, {})
        for manifest in [] if snapshot is None else manifests_of(table.io, snapshot):
            kind = manifests.deletes if manifest.content == ManifestContent.DELETES else manifests.data
            kind[manifest.manifest_path] = manifest
        return manifests


class _DeleteIndex:
    """Matches delete files to every data file that they may apply to (the specification, "Scan Planning").

    Position deletes of one data file are found by its path, as Iceberg's own readers find them, and other deletes by
    their partition; deletes of a spec without a partition may apply to every file.
    """

    def __init__(self, entries: list[ManifestEntry], unpartitioned: set[int]):
        self._by_key: dict[tuple | bytes, list[ManifestEntry]] = {}
        for entry in entries:
            lower, upper = _path_bounds(entry)
            wide = () if entry.data_file.spec_id in unpartitioned else _partition_key(entry)
            key = lower if lower is not None and lower == upper else wide
            self._by_key.setdefault(key, []).append(entry)

    def deletes_of(self, entry: ManifestEntry) -> list[ManifestEntry]:
        """Return the deletes that may apply to a data file."""
        keys = dict.fromkeys(((), _partition_key(entry), entry.data_file.file_path.encode()))
        near = [delete for key in keys for delete in self._by_key.get(key, ())]
        return [delete for delete in near if _may_apply(delete, entry)]

    def token(self, entry: ManifestEntry) -> str | None:
        """Return an id of the deletes that may apply to a data file; None if there are none."""
        paths = sorted(d.data_file.file_path for d in self.deletes_of(entry))
        return f"deletes:{hashlib.sha256(repr(paths).encode()).hexdigest()[:32]}" if paths else None


def _partition_key(entry: ManifestEntry) -> tuple:
    partition = entry.data_file.partition
    if len(partition) == 0:
        return ()
    return entry.data_file.spec_id, repr([partition[i] for i in range(len(partition))])


def _may_apply(delete: ManifestEntry, data: ManifestEntry) -> bool:
    from pyiceberg.manifest import DataFileContent

    is_equality = delete.data_file.content == DataFileContent.EQUALITY_DELETES
    numbers = delete.sequence_number, data.sequence_number
    if None not in numbers and numbers[0] < numbers[1] + is_equality:
        return False
    if is_equality:
        return True
    path = data.data_file.file_path.encode()
    lower, upper = _path_bounds(delete)
    return not (lower is not None and path < lower) and not (upper is not None and path > upper)


def _path_bounds(delete: ManifestEntry) -> tuple[bytes | None, bytes | None]:
    """Return the bounds of the paths whose rows a position delete file deletes. Bounds that are missing or damaged, and
    so exclude nothing, are None."""
    from pyiceberg.manifest import DataFileContent

    file = delete.data_file
    if file.content != DataFileContent.POSITION_DELETES:
        return None, None
    lower, upper = ((bounds or {}).get(_DELETED_PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    try:
        texts = [bound.decode() for bound in (lower, upper) if bound is not None]
    except UnicodeDecodeError:
        return None, None
    return (lower, upper) if texts == sorted(texts) else (None, None)


def _contains_positions(delete: ManifestEntry) -> bool:
    """Return whether a delete file contains row positions in Parquet."""
    from pyiceberg.manifest import DataFileContent

    is_parquet = str(delete.data_file.file_format).rsplit(".", 1)[-1].lower() == "parquet"
    return is_parquet and delete.data_file.content == DataFileContent.POSITION_DELETES


def _unreadable(entry: ManifestEntry) -> str | None:
    """Return why Skipstone cannot read a file, apart from deletes."""
    name = str(entry.data_file.file_format).rsplit(".", 1)[-1].lower()
    if name != "parquet":
        return f"format:{name}"
    return "encrypted" if entry.data_file.key_metadata else None


def _select_snapshot(table: StaticTable, snapshot_id: int, location: str) -> None:
    """Make an older snapshot, with its schema, the current one of a table in memory."""
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise NotATableError(f"{location}: its Iceberg metadata has no snapshot {snapshot_id}; it may have expired")
    changed = {"current_snapshot_id": snapshot_id}
    if snapshot.schema_id is not None and snapshot.schema_id in table.schemas():
        changed["current_schema_id"] = snapshot.schema_id
    table.metadata = table.metadata.model_copy(update=changed)
