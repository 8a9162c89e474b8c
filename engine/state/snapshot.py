"""The contents of one version of a table: its partitions and its files, read from the manifest's runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, from_numpy, is_utf8, string_array, to_numpy
from ...base.caching import cached_property
from ...errors import CorruptionError
from .. import hive
from ..storage import FileMissingError
from . import Instant
from .manifest import (
    FILE_FIELDS,
    KEY_ROW,
    KEYS,
    KIND_FILE,
    KIND_KEY,
    KIND_PARTITION,
    KIND_REMOVED,
    PARTITION_FIELDS,
    REMOVED_ROW,
    RUN_SCHEMA,
    SEGMENT_FIELD,
    check_files,
    key_number,
    split_file_ids,
)
from .run_lookups import entries_between, get_by_ids, newest_numbered, numbered_entries, numbers_with
from .runs import DamagedRun, RunReaders

T = TypeVar("T")
RANGES_MAX = 32  # up to this many ranges of partitions are looked up one by one; for more, all entries are read
FILE_ROW = (*(f.name for f in FILE_FIELDS), SEGMENT_FIELD.name)


class LogTail(NamedTuple):
    """The changes that a snapshot contains beyond its version: see `engine.commit.follow_log`.

    position    the position by which the log of the other format finds the pinned state again
    version     that log's own number for it
    added, removed    the numbers of files
    """

    position: str
    version: int | None
    added: int
    removed: int


class Snapshot:
    """One version, read on demand; what was read once is kept. With a `tail` it also contains the later changes of the
    log of another format. Threads may share one: none waits while another reads.

    suspects    paths of files that were found missing or changed on storage, or that are quarantined
    remedy      what the user can do about such a file, by its path: this depends on the handle
    """

    def __init__(self, instant: Instant, readers: RunReaders):
        self.instant, self.readers = instant, readers
        self.tail: LogTail | None = None
        self.suspects = {file["path"] for file in instant.quarantined}
        self.remedy: Callable[[str], str] = lambda path: "{open} the table again and scan again"
        self._ids_by_text: dict[str, int] | None = None
        self._looked_up: dict[str, int | None] = {}  # by the text of a partition; None: it has no files
        self._files: dict[tuple[str, ...], pa.Table] = {}  # by the columns read

    def partitions(self) -> pa.Table:
        """Return one row per partition with files: partition_id u32, partition, file_count, live_rows, live_bytes."""
        return self._partitions

    @cached_property
    def _partitions(self) -> pa.Table:
        numbers, rows = self._entries(KIND_PARTITION, [f.name for f in PARTITION_FIELDS])
        return rows.add_column(0, "partition_id", from_numpy(split_file_ids(numbers)[0]))

    def partition_id(self, partition: str) -> int | None:
        """Return the id of a partition by its text; None if it has no files."""
        return self.partition_ids([partition]).get(partition) if is_utf8(partition) else None

    def partition_ids(self, texts: Collection[str]) -> dict[str, int]:
        """Return the ids of those of some partitions that have files, by their texts."""
        unknown = [text for text in texts if text not in self._looked_up]
        if unknown:
            named, ids = combine(self.partitions().column("partition")), self.partitions().column("partition_id")
            rows = from_numpy(np.flatnonzero(to_numpy(pc.is_in(named, value_set=string_array(unknown)))))
            pairs = zip(named.take(rows).to_pylist(), ids.take(rows).to_pylist(), strict=True)
            self._looked_up = {**self._looked_up, **dict.fromkeys(unknown), **dict(pairs)}
        return {text: number for text in texts if (number := self._looked_up[text]) is not None}

    def ids_by_text(self) -> dict[str, int]:
        """Return the id of each partition that has files, by its text."""
        if self._ids_by_text is None:
            partitions = self.partitions()
            pairs = zip(
                partitions.column("partition").to_pylist(), partitions.column("partition_id").to_pylist(), strict=True
            )
            self._ids_by_text = dict(pairs)
        return self._ids_by_text

    def partition_values(self) -> dict[str, pa.Array]:
        """Return the typed value of each partition column, aligned with `partitions()`."""
        fields = [self.instant.schema.field(name) for name in self.instant.partitioning]

        def parse() -> dict[str, pa.Array]:
            texts = combine(self.partitions().column("partition"))
            return dict(zip(self.instant.partitioning, hive.typed_columns(texts, fields), strict=True))

        return self._kept(f"partition values: {fields}", parse)

    def files(
        self, partition_ids: Sequence[int] | np.ndarray | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return one row per live file, by file id: file_id u64, partition_id u32, and the manifest's fields and
        segment, or the requested ones of these. If `partition_ids` (ascending) is given, only files of these."""
        names = FILE_ROW if columns is None else tuple(columns)
        wider = next((table for names_read, table in self._files.copy().items() if set(names) <= set(names_read)), None)
        if wider is None and partition_ids is not None:
            return _file_rows(*self._entries(KIND_FILE, names, partition_ids))
        if wider is None:
            wider = self._files.setdefault(names, _file_rows(*self._entries(KIND_FILE, names)))
        files = wider.select(["file_id", "partition_id", *names])
        return files if partition_ids is None else _of_partitions(files, partition_ids)

    def numbers(self, partition_ids: np.ndarray | None = None) -> np.ndarray:
        """Return the numbers of all live files, or of those of some partitions (ascending ids): uint64, ascending."""
        if partition_ids is not None and len(_number_ranges(partition_ids)) <= RANGES_MAX:
            return self._entries(KIND_FILE, [], partition_ids)[0]
        numbers, _ = self._entries(KIND_FILE, [])
        if partition_ids is None:
            return numbers
        partition, _ = split_file_ids(numbers)
        return numbers[np.isin(partition, partition_ids)]

    def rows(self, ids: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return those of some files (uint64 ids, ascending) that are live: file_id, partition_id, and the requested
        columns of the manifest."""
        with self._naming_damage():
            live_ids, rows = get_by_ids(
                self.readers, self.instant.manifest, KEYS.prefix(kind=KIND_FILE), ids, columns, RUN_SCHEMA
            )
            self._check(KIND_FILE, rows)
        return _file_rows(live_ids, rows)

    @property
    def partitions_in_paths(self) -> bool:
        """Whether the path of every file contains its partition."""
        source = self.instant.source
        return bool(self.instant.partitioning and source.get("hive") and not source.get("partitions_declared"))

    def find(self, paths: Sequence[str], *, are_new: bool = False) -> dict[str, int]:
        """Return the number of each of some paths that is live. `are_new`: probably none is, which takes less time."""
        by_partition: dict[int | None, list[bytes]] = {}
        by_path = self.partitions_in_paths
        texts = [hive.partition_of(path) for path in paths] if by_path else []
        numbers = self.partition_ids(texts)
        for path, text in zip(paths, texts or [""] * len(paths), strict=True):
            partition = numbers.get(text)
            if partition is not None or not by_path:
                by_partition.setdefault(partition, []).append(path.encode())
        ends = {p: (0, (1 << 64) - 1) if p is None else (p << 32, p << 32 | 0xFFFF_FFFF) for p in by_partition}
        wanted = sorted((ends[p], values) for p, values in by_partition.items())
        ids, rows = self._at(KIND_FILE, wanted, ["path"], are_new)
        return dict(zip(rows.column("path").to_pylist(), ids.tolist(), strict=True))

    def _at(self, kind: int, wanted: list[tuple], columns: Sequence[str], are_new: bool) -> tuple[np.ndarray, pa.Table]:
        """Return the live entries of a kind at some paths, as `_entries` does. `wanted`: see `numbers_with`."""
        runs, prefix = self.instant.manifest, KEYS.prefix(kind=kind)
        with self._naming_damage():
            near = numbers_with(self.readers, runs, prefix, wanted, "path", RUN_SCHEMA, are_new=are_new)
            return get_by_ids(self.readers, runs, prefix, near, columns, RUN_SCHEMA)

    def segments(self, ids: np.ndarray) -> np.ndarray:
        """Return int64: the segments of some files (uint64 ids, ascending); 0, which no file has, for one not live."""
        rows = self.rows(ids, [SEGMENT_FIELD.name])
        segments = np.zeros(len(ids), dtype=np.int64)
        segments[np.searchsorted(ids, to_numpy(rows.column("file_id")))] = to_numpy(rows.column(SEGMENT_FIELD.name))
        return segments

    def removed_files(self, paths: Sequence[str] | None = None) -> pa.Table:
        """Return removed files that may still be on storage: file_id, partition_id, path, size_bytes, modified_ns,
        etag, segment (which added it), kind ("cleaned" if a clean removed it, or was to). If `paths` is given, only
        files of these paths; probably none was removed."""
        if paths is None:
            return _file_rows(*self._entries(KIND_REMOVED, REMOVED_ROW))
        wanted = [((0, (1 << 64) - 1), [path.encode() for path in paths])]
        return _file_rows(*self._at(KIND_REMOVED, wanted, REMOVED_ROW, are_new=True))

    def version_of_key(self, key: str) -> int | None:
        """Return the version that a commit under this key created; None if none did, or it was rolled back."""
        wanted = np.array([key_number(key)], dtype=np.uint64)
        with self._naming_damage():
            _, rows = get_by_ids(
                self.readers, self.instant.manifest, KEYS.prefix(kind=KIND_KEY), wanted, KEY_ROW, RUN_SCHEMA
            )
        matches = rows.to_pylist()
        return matches[0]["segment"] if matches and matches[0]["path"] == key else None

    def keys(self) -> dict[str, int]:
        """Return the keys of idempotent commits that count, and the versions that these created."""
        _, rows = self._entries(KIND_KEY, KEY_ROW)
        return dict(zip(*(rows.column(name).to_pylist() for name in KEY_ROW), strict=True))

    def _kept(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of `make` on the manifest. If that is small, cache it for every handle of the process."""
        with self._naming_damage():
            runs = self.readers.cached(self.instant.manifest)
        if not runs or not all(run.is_small for run in runs):
            return make()
        return runs[-1].decoded((name, *(run.key for run in runs)), make)

    def _entries(
        self, kind: int, columns: Sequence[str], partition_ids: Sequence[int] | np.ndarray | None = None
    ) -> tuple[np.ndarray, pa.Table]:
        """Return the live entries of a kind: (uint64 numbers, ascending; the columns)."""
        runs, prefix = self.instant.manifest, KEYS.prefix(kind=kind)
        with self._naming_damage():
            if partition_ids is None:
                numbers, rows = numbered_entries(self.readers, runs, prefix, columns, RUN_SCHEMA)
            else:
                parts = [
                    entries_between(self.readers, runs, prefix, ends, columns, RUN_SCHEMA)
                    for ends in _number_ranges(partition_ids)
                ] or [newest_numbered([], columns, RUN_SCHEMA)]
                numbers, rows = parts[0]
                if len(parts) > 1:
                    numbers, rows = np.concatenate([n for n, _ in parts]), pa.concat_tables([r for _, r in parts])
            self._check(kind, rows)
        return numbers, rows

    def _check(self, kind: int, rows: pa.Table) -> None:
        if kind == KIND_FILE:
            # The tail of a log is bound as the version after this one.
            check_files(rows, self.instant.version + 1, len(self.instant.file_schemas))
        elif kind == KIND_PARTITION and rows.column("partition").null_count:
            raise CorruptionError("a partition in the manifest has no name; restore its runs", check="manifest")

    @contextlib.contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Raise errors that name the manifest. It has no sound substitute, as an index has: its files would vanish."""
        try:
            yield
        except DamagedRun as damaged:
            with self._naming_damage():
                raise damaged.error from damaged
        except FileMissingError as error:
            message = (
                f"the manifest of version {self.instant.version} is not whole: {error}; it was cleaned (refresh() the "
                "handle), or is lost (restore the file)"
            )
            raise CorruptionError(message, check="manifest") from error
        except CorruptionError as error:
            for run in self.instant.manifest:
                self.readers.forget(run)
            message = f"the manifest of version {self.instant.version} is damaged: {error.message}"
            raise CorruptionError(message, path=error.path, offset=error.offset, check=error.check) from error


@cache
def no_files() -> pa.Table:
    """Return what `Snapshot.files` returns for no files."""
    return _file_rows(*newest_numbered([], FILE_ROW, RUN_SCHEMA))


def _file_rows(ids: np.ndarray, rows: pa.Table) -> pa.Table:
    columns = [from_numpy(ids), from_numpy(split_file_ids(ids)[0]), *rows.columns]
    return pa.Table.from_arrays(columns, ["file_id", "partition_id", *rows.column_names])


def _number_ranges(partition_ids: Sequence[int] | np.ndarray) -> list[tuple[int, int]]:
    """Return the ranges of numbers that files of some partitions (ascending) may have; neighbours are joined."""
    if len(partition_ids) == 1:
        low = int(partition_ids[0]) << 32
        return [(low, low | 0xFFFF_FFFF)]
    ids = np.asarray(partition_ids, dtype=np.int64)
    leaps = np.flatnonzero(np.diff(ids) != 1)
    lows, highs = ids[[0, *(leaps + 1)]] if len(ids) else ids, ids[[*leaps, -1]] if len(ids) else ids
    return [(low << 32, high << 32 | 0xFFFF_FFFF) for low, high in zip(lows.tolist(), highs.tolist(), strict=True)]


def _of_partitions(files: pa.Table, partition_ids: Sequence[int] | np.ndarray) -> pa.Table:
    ids = to_numpy(files.column("partition_id")).astype(np.int64)
    wanted = np.asarray(partition_ids, dtype=np.int64)
    parts = [slice(*np.searchsorted(ids, [p, p + 1])) for p in wanted]
    if not parts:
        return files.slice(0, 0)
    return pa.concat_tables([files.slice(s.start, s.stop - s.start) for s in parts])


def remedy(path: str, *, instant: Instant, is_pinned: bool, follows_log: bool) -> str:
    """Return what helps a handle that met a missing or changed file. One on a chosen version stays there."""
    reason = next((file["reason"] for file in instant.quarantined if file["path"] == path), None)
    if reason is not None and not is_pinned:
        reason = reason.replace("{", "{{").replace("}", "}}")
        return (
            f"the file there now is quarantined ({reason}): replace it by a complete file, or remove it, and "
            f"{{sync}} the table"
        )
    if not is_pinned:
        return "{refresh} the table and scan again" if follows_log else "{sync} the table and scan again"
    follow = "" if follows_log else ", and {sync} it"
    message = f"version {instant.version} cannot be read as it was"
    return f"{message}: {{open}} a later version, or {{refresh}} this handle{follow}"
