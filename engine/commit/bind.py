"""Binding: what tasks did, in local ordinals, becomes rows under ids of one version.

Binding is a function of a base instant and is done again, from the start, whenever another commit came first: ids,
partition counts and aggregates are then recomputed, never renumbered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, from_numpy, to_numpy
from ...errors import CommitConflictError, InvalidArgumentError
from .. import hive
from ..indexes.task_result import AddedFiles, TaskResult
from ..state import FileSchema, Instant, manifest
from ..state.manifest import BASE, FILE_FIELDS
from ..state.run_format import EntryBatch
from ..state.snapshot import Snapshot, no_files
from .files_by_id import ids_in
from .schemas import check_fits, check_instants_fit, file_schema


@dataclass(frozen=True)
class Moved:
    """Files that a storage has under another time or etag than recorded, as the manifest is to have them from now on.

    live    file_id and the manifest's fields of live files
    removed files that were taken out, as `Snapshot.removed_files` gives them
    """

    live: pa.Table
    removed: pa.Table


@dataclass
class Bound:
    """Entries to be written, and the instant that they lead to (its runs and indexes still those of the base).

    manifest    entries of the manifest
    added       the added files under their ids, result by result
    removed     the removed files, as the manifest had them
    """

    instant: Instant
    manifest: EntryBatch
    added: list[AddedFiles]
    removed: pa.Table


def bind(
    snapshot: Snapshot,
    named_at: Instant,
    results: Sequence[TaskResult],
    removed: Mapping[int, str],
    *,
    remember_removed: bool,
    keys: Mapping[str, int | None],
    moved: Moved | None = None,
    more: Sequence[EntryBatch] = (),
) -> Bound:
    """Binds added files and removed ones (file id -> path) to the version after the snapshot's. The results' columns
    are named as they were at `named_at`. With `remember_removed` the removed files may be on storage still, and are
    remembered by path and identity. `keys` of idempotent commits: the version that each made, from now on; None for
    one that is free again. `moved`: files that are stored elsewhere. `more`: other entries of the manifest.

    Raises CommitConflictError for a file to be removed that is no longer live, SchemaError for one that does not fit.
    """
    base = snapshot.instant
    after = replace(base, version=base.version + 1)
    partitions = _Partitions(snapshot)
    added: list[AddedFiles] = []
    rows: list[pa.Table] = []
    sequence = base.next["sequence"]
    for result in results:
        after, schema_ids = _bind_schemas(after, named_at, result)
        partition_ids = partitions.ids(result.files.column("partition"))
        count = result.files.num_rows
        if sequence + count >= 1 << 32:
            raise InvalidArgumentError("this table has given out all of its 2**32 file sequences")
        sequences = np.arange(sequence, sequence + count, dtype=np.uint32)
        sequence += count
        rows.append(_manifest_rows(result, schema_ids, after.version))
        schema_of = to_numpy(rows[-1].column("schema_id")).astype(np.int64)
        added.append(AddedFiles(result, manifest.file_ids(partition_ids, sequences), schema_of))
        partitions.add(added[-1].ids, result.files)
    partitions.check_new_values()
    removed_files = _removed_files(snapshot, removed)
    partitions.take(removed_files)
    after = replace(
        after,
        next={**after.next, "sequence": sequence, "partition": partitions.following},
        totals=partitions.totals(base.totals)
        | {"plain": base.totals["plain"] + _plain(rows) - _plain([removed_files])},
    )
    entries = _partition_entries(partitions)
    for files, file_rows in zip(added, rows, strict=True):
        entries.append(_entries(manifest.KIND_FILE, files.ids, file_rows))
    if removed_files.num_rows:
        entries.append(_entries(manifest.KIND_FILE, to_numpy(removed_files.column("file_id")), None))
        if remember_removed:
            entries.append(removed_entries(removed_files))
    again = _added_again(snapshot, added)
    if len(again):
        entries.append(_entries(manifest.KIND_REMOVED, again, None))
    entries += [*_key_entries(keys), *more]
    if moved is not None:
        entries.append(_entries(manifest.KIND_FILE, to_numpy(moved.live.column("file_id")), moved.live.drop("file_id")))
        entries.append(removed_entries(moved.removed))
    return Bound(after, EntryBatch.concat(entries, manifest.RUN_SCHEMA), added, removed_files)


def _plain(parts: Sequence[pa.Table]) -> int:
    """How many files are a base alone, to which no log, delete or commit state applies."""
    count = 0
    for files in parts:
        if not files.num_rows:
            continue
        plain = to_numpy(pc.equal(files.column("kind"), BASE))
        for name in ("file_group", "deletes", "commit"):
            plain &= to_numpy(files.column(name).is_null())
        count += int(plain.sum())
    return count


_COUNTS = ("file_count", "live_rows", "live_bytes", "fingerprint")


class _Partitions:
    """The partitions that a commit touches, with their counts before and after."""

    def __init__(self, snapshot: Snapshot):
        base = snapshot.instant
        self._partitions = snapshot.partitions()
        self._fields = [base.schema.field(name) for name in base.partitioning]
        self._snapshot = snapshot
        self._texts: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._counts: dict[int, list[int]] = {}
        self.following = base.next["partition"]
        self._new: list[str] = []
        self._touched: set[int] = set()
        self._change = [0, 0, 0, 0]

    def ids(self, texts: pa.ChunkedArray) -> np.ndarray:
        encoded = texts.combine_chunks().dictionary_encode()
        ids, names = [], encoded.dictionary.to_pylist()
        ids_before = self._snapshot.partition_ids(names)
        for text in names:
            partition = self._ids.get(text, ids_before.get(text))
            if partition is None:
                partition = self.following
                self._counts[partition] = [0, 0, 0, 0]
                self.following += 1
                self._new.append(text)
            self._ids[text], self._texts[partition] = partition, text
            ids.append(partition)
        return np.array(ids, dtype=np.uint32)[encoded.indices.to_numpy()] if ids else np.zeros(0, dtype=np.uint32)

    def check_new_values(self) -> None:
        """Raises SchemaError naming a new partition whose keys or values do not fit the table's."""
        hive.typed_values(self._new, self._fields)

    def add(self, file_ids: np.ndarray, files: pa.Table) -> None:
        self._change_by(file_ids, files, 1)

    def take(self, files: pa.Table) -> None:
        self._change_by(to_numpy(files.column("file_id")), files, -1)

    def _change_by(self, file_ids: np.ndarray, files: pa.Table, sign: int) -> None:
        if files.num_rows == 0:
            return
        rows = pc.fill_null(files.column("row_count"), 0).to_numpy()
        sizes = pc.fill_null(files.column("size_bytes"), 0).to_numpy()
        marks = manifest.fingerprints(file_ids)
        touched, places = np.unique(manifest.split_file_ids(file_ids)[0], return_inverse=True)
        changes = (np.bincount(places), *(_sums(places, values, len(touched)) for values in (rows, sizes, marks)))
        self._read_counts(touched)
        for position, partition in enumerate(touched.tolist()):
            counts = self._counts[partition]
            for which, change in enumerate(changes):
                counts[which] += sign * int(change[position])
                self._change[which] += sign * int(change[position])
        self._touched.update(touched.tolist())

    def _read_counts(self, partitions: np.ndarray) -> None:
        """The text and the counts of partitions that are there already, if they were not read yet."""
        new = [p for p in partitions.tolist() if p not in self._counts]
        if new:
            places = np.searchsorted(to_numpy(self._partitions.column("partition_id")), np.array(new, dtype=np.uint32))
            rows = self._partitions.select(["partition", *_COUNTS]).take(from_numpy(places)).to_pylist()
            for number, row in zip(new, rows, strict=True):
                self._texts[number] = row["partition"]
                self._counts[number] = [row[name] for name in _COUNTS]

    def totals(self, before: dict[str, int]) -> dict[str, int]:
        names = ("files", "rows", "bytes")
        return {name: before[name] + change for name, change in zip(names, self._change[:3], strict=True)}

    def rows(self) -> tuple[list[int], pa.Table, np.ndarray]:
        """(ids, manifest rows, bool: no file is left in it) of the touched partitions."""
        ids = sorted(self._touched)
        counted = [[*counts, manifest.wrapped(mark)] for *counts, mark in (self._counts[i] for i in ids)]
        counts = np.array(counted, dtype=np.int64).reshape(-1, 4)
        columns = [pa.array([self._texts[i] for i in ids], pa.string()), *(pa.array(counts[:, c]) for c in range(4))]
        rows = pa.table(dict(zip([f.name for f in manifest.PARTITION_FIELDS], columns, strict=True)))
        return ids, rows, counts[:, 0] == 0


def _sums(places: np.ndarray, values: np.ndarray, length: int) -> np.ndarray:
    sums = np.zeros(length, dtype=np.int64)  # not bincount's weights: those are floats, and lose bytes
    np.add.at(sums, places, values)
    return sums


def _bind_schemas(after: Instant, named_at: Instant, result: TaskResult) -> tuple[Instant, np.ndarray]:
    """The instant with the result's physical schemas, and the id of each; last, that of declared files."""
    numbers = {_identity(s): i for i, s in enumerate(after.file_schemas)}
    bound = []
    for position, schema in enumerate(result.schemas):
        names, nested = result.names_of(position)
        bound.append(file_schema(after, named_at, schema, names=names, nested=nested))
        if _identity(bound[-1]) not in numbers:
            example = pc.index(result.files.column("schema_id"), position).as_py()
            check_fits(after, bound[-1], result.files.column("path")[example].as_py() if example >= 0 else "a file")
    check_instants_fit(after, bound, result)
    if result.files.column("schema_id").null_count:
        physical = result.declared_names
        fields = [f for f in named_at.schema if f.name not in named_at.partitioning]
        declared = pa.schema([f.with_name(physical.get(f.name, f.name)) for f in fields])
        names = dict(zip(declared.names, (f.name for f in fields), strict=True))
        bound.append(file_schema(after, named_at, declared, is_declared=True, names=names))
    file_schemas = list(after.file_schemas)
    for schema in bound:
        if numbers.setdefault(_identity(schema), len(file_schemas)) == len(file_schemas):
            file_schemas.append(schema)
    ids = [numbers[_identity(schema)] for schema in bound]
    return replace(after, file_schemas=tuple(file_schemas)), np.array(ids, dtype=np.int32)


def _identity(schema: FileSchema) -> tuple:
    """What tells file schemas apart: files of one physical schema hold other columns before and after a rename."""
    pairs = (tuple(each.items()) for each in (schema.fields, schema.columns, schema.nested))
    return schema.schema, *pairs, schema.is_declared


def _manifest_rows(result: TaskResult, schema_ids: np.ndarray, version: int) -> pa.Table:
    rows = result.files.select([f.name for f in FILE_FIELDS])
    local = pc.fill_null(rows.column("schema_id").combine_chunks(), len(result.schemas))
    bound = pa.array(schema_ids, pa.int32()).take(local)
    position = rows.schema.get_field_index("schema_id")
    rows = rows.set_column(position, "schema_id", bound)
    return rows.append_column(manifest.SEGMENT_FIELD, pa.array(np.full(rows.num_rows, version)))


def _removed_files(snapshot: Snapshot, removed: Mapping[int, str]) -> pa.Table:
    ids = ids_in(removed)
    if not len(ids):
        return no_files()
    partition, _ = manifest.split_file_ids(ids)
    files = snapshot.files(np.unique(partition))
    live_files = files.filter(from_numpy(np.isin(to_numpy(files.column("file_id")), ids)))
    lost = [removed[number] for number in ids[~np.isin(ids, to_numpy(live_files.column("file_id")))].tolist()]
    if lost:
        raise CommitConflictError(f"{lost[0]}: another commit removed or replaced it", paths=lost)
    return live_files


def _added_again(snapshot: Snapshot, added: Sequence[AddedFiles]) -> np.ndarray:
    """Ids under which files that are added now are remembered as removed: they no longer are. A path that comes under
    another identity is another file, and the removed one stays remembered."""
    if not any(run.may_hold(manifest.KEYS.prefix(kind=manifest.KIND_REMOVED)) for run in snapshot.instant.manifest):
        return np.empty(0, dtype=np.uint64)
    anywhere = snapshot.instant.source.get("partitions_declared") or any(f.result.declares_partitions for f in added)
    ids = np.concatenate([files.ids for files in added]) if added else np.empty(0, dtype=np.uint64)
    partitions = np.unique(manifest.split_file_ids(ids)[0])
    # A new partition may be one that was emptied: files removed from it are remembered under its former number.
    is_new = len(partitions) and int(partitions[-1]) >= snapshot.instant.next["partition"]
    remembered = snapshot.removed_files(None if anywhere or is_new else partitions)
    paths = pa.chunked_array([c for f in added for c in f.result.files.column("path").chunks], pa.string())
    remembered = remembered.filter(pc.is_in(remembered.column("path"), value_set=combine(paths)))
    if remembered.num_rows == 0:
        return np.empty(0, dtype=np.uint64)
    added_rows = {row["path"]: row for f in added for row in f.result.files.select(manifest.IDENTITY).to_pylist()}
    pairs = [(row, added_rows[row["path"]]) for row in remembered.select(manifest.IDENTITY).to_pylist()]
    check_not_cleaned(remembered.filter(from_numpy(np.array([_may_be(*pair) for pair in pairs], dtype=bool))))
    is_back = np.array([old == new for old, new in pairs], dtype=bool)
    return to_numpy(remembered.column("file_id"))[is_back]


def _may_be(one: Mapping, other: Mapping) -> bool:
    """True where two identities may be of one file: what both know is equal."""
    return all(None in (one[name], other[name]) or one[name] == other[name] for name in manifest.IDENTITY)


def check_not_cleaned(removed: pa.Table) -> None:
    """Raises CommitConflictError for removed files that come back, and that a clean removes from storage."""
    paths = (
        removed.filter(pc.equal(removed.column("kind"), manifest.CLEANED).fill_null(False)).column("path").to_pylist()
    )
    if paths:
        raise CommitConflictError(f"{paths[0]}: a clean removed it from storage", paths=paths)


def _partition_entries(partitions: _Partitions) -> list[EntryBatch]:
    ids, rows, emptied = partitions.rows()
    keys = manifest.KEYS.encode(
        kind=manifest.KIND_PARTITION,
        partition=np.array(ids, dtype=np.uint32),
        sequence=np.zeros(len(ids), dtype=np.uint32),
    )
    return [EntryBatch(keys, rows, emptied)]


def _entries(kind: int, numbers: np.ndarray, rows: pa.Table | None) -> EntryBatch:
    """Entries of a kind under some numbers; tombstones where there are no rows."""
    partition, sequence = manifest.split_file_ids(numbers)
    keys = manifest.KEYS.encode(kind=kind, partition=partition, sequence=sequence)
    if rows is None:
        rows = pa.table({"path": pa.nulls(len(numbers))})
        return EntryBatch(keys, rows, np.ones(len(numbers), dtype=bool))
    return EntryBatch(keys, rows, np.zeros(len(numbers), dtype=bool))


def file_entries(ids: np.ndarray, rows: pa.Table) -> EntryBatch:
    """Entries of live files, under their ids: the manifest's fields of each."""
    return _entries(manifest.KIND_FILE, ids, rows)


def removed_entries(files: pa.Table, *, are_cleaned: bool = False) -> EntryBatch:
    """Entries that remember removed files: by path, identity and the segment that added them; and, where they are
    cleaned, that they are removed from storage, so that nobody takes them back."""
    rows = files.select([*manifest.IDENTITY, manifest.SEGMENT_FIELD.name])
    if are_cleaned:
        rows = rows.append_column("kind", pa.repeat(manifest.CLEANED, rows.num_rows))
    return _entries(manifest.KIND_REMOVED, to_numpy(files.column("file_id")), rows)


def _key_entries(keys: Mapping[str, int | None]) -> list[EntryBatch]:
    entries = []
    for key, version in keys.items():
        rows = None if version is None else pa.table({"path": [key], manifest.SEGMENT_FIELD.name: [version]})
        entries.append(_entries(manifest.KIND_KEY, np.array([manifest.key_number(key)], dtype=np.uint64), rows))
    return entries
