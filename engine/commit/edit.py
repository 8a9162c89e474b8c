"""An edit: what one attempt of a commit changes in the newest version, and the version that results.

Binding turns results of tasks, which use local ordinals, into rows under ids of one version. It is a function of a base
instant. If another commit was first, binding runs again from the start: it recomputes ids, partition counts and
aggregates, and never renumbers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import array_of, combine, empty_table, filled, from_numpy, scalar_of, string_scalar, to_numpy
from ...errors import CommitConflictError, InvalidArgumentError
from .. import hive
from ..indexes.kind import CommitContext, kind_or_none
from ..indexes.task_result import AddedFiles, TaskResult
from ..state import FileSchema, Instant, manifest, now_us
from ..state.lsm import RunWriter
from ..state.manifest import BASE, FILE_FIELDS, RUN_SCHEMA
from ..state.paths import first_twice
from ..state.run_format import EntryBatch
from ..state.snapshot import Snapshot, no_files
from ..storage import Storage
from .schemas import check_fits, check_instants_fit, file_schema, schemas_of

_LOOKUPS_MAX = 1_000  # if there are more paths, they are compared with all live paths of their partitions
REMOVED = pa.schema([("file_id", pa.uint64()), ("path", pa.string())])  # files to remove: one row per file


def removal(files: Mapping[int, str]) -> pa.Table:
    """Return some files (id -> path) as a table of schema `REMOVED`."""
    return pa.table([list(files), list(files.values())], schema=REMOVED)


@dataclass
class Edit:
    """The changes to make in the newest version.

    after              the newest version with other columns, indexes or settings; None: unchanged
    names_from           the version whose names for columns the results use; None: `after`, or the commit's base
    results            files to add, as tasks returned them
    removed            live files to remove (`REMOVED`)
    remember_removed   the removed files may still be on storage, and must not be added again
    entries            other entries of the manifest
    leaves_files       some entries are of removed live files that stay on storage
    states             commit -> its state, as `Instant.commit_states`
    quarantined        files that cannot be read, or do not fit; None: those of `after`
    fenced             transactions to give up
    source             fields to set in the version's source
    summary            fields of the version's summary, in addition to the counts
    action             another name than that of the commit
    data               the table's storage, if indexes that no task built a part of are built from the added files; only
                         the first attempt builds them
    """

    after: Instant | None = None
    names_from: Instant | None = None
    results: Sequence[TaskResult] = ()
    removed: pa.Table = field(default_factory=lambda: empty_table(REMOVED))
    remember_removed: bool = True
    entries: Sequence[EntryBatch] = ()
    leaves_files: bool = False
    states: Mapping[str, str] = field(default_factory=dict)
    quarantined: tuple[dict, ...] | None = None
    fenced: tuple[str, ...] = ()
    source: Mapping[str, object] = field(default_factory=dict)
    summary: Mapping[str, object] = field(default_factory=dict)
    action: str | None = None
    data: Storage | None = None


def next_version(
    edit: Edit, newest: Instant, action: str, key: str | None, base: Instant, writing: RunWriter
) -> Instant:
    """Write the runs of one attempt, and return the version that names them and follows `newest`. `base`: the version
    at which the commit began. Raise CommitConflictError if an added path is live, or a removed one is not; SchemaError
    if a file does not fit."""
    before = edit.after or newest
    version = newest.version + 1
    after, summary = replace(before, version=version), dict(edit.summary)
    if key is not None:
        edit = replace(edit, entries=[*edit.entries, key_entry(key, version)])
    if edit.results or edit.removed.num_rows:
        after = _with_files(edit, before, newest, base, writing)
        summary = {**_counts(edit, after, newest), **summary}
    else:  # no file is added, so every index covers this version
        indexes = tuple(replace(i, coverage=i.coverage.with_segment(version)) for i in after.indexes)
        after = replace(after, indexes=indexes)
        if edit.entries:
            rows = EntryBatch.concat(edit.entries, RUN_SCHEMA)
            after = replace(after, manifest=writing.append_to_manifest(after.manifest, rows, version))
    after = replace(
        after,
        transaction=writing.transaction,
        action=edit.action or action,
        time_us=now_us(after=newest.when_us),
        summary=summary,
        key=key,
        fenced=edit.fenced,
        source={**after.source, **edit.source},
        quarantined=after.quarantined if edit.quarantined is None else edit.quarantined,
    )
    return after.with_commit_states(edit.states).following(newest)


def _with_files(edit: Edit, before: Instant, newest: Instant, base: Instant, writing: RunWriter) -> Instant:
    """Return the next version with the edit's files, in the manifest and in every index."""
    snapshot = Snapshot(before, writing.readers)
    _check_added(snapshot, edit, is_later=newest.version > base.version)
    names_from = edit.names_from or edit.after or base
    bound = bind(
        snapshot,
        names_from,
        edit.results,
        edit.removed,
        remember_removed=edit.remember_removed,
        entries=edit.entries,
    )
    after, version = bound.instant, bound.instant.version
    if any(r.declares_partitions for r in edit.results):
        after = replace(after, source={**after.source, "partitions_declared": True})
    if len(bound.manifest[0]):
        after = replace(after, manifest=writing.append_to_manifest(after.manifest, bound.manifest, version))
    work = CommitContext(after, names_from, edit.results, bound.added, bound.removed, writing, edit.data)
    adds_none = not any(len(files.ids) for files in bound.added)
    for index in after.indexes:
        kind = kind_or_none(index.kind)
        state = index if kind is None else kind.commit(index, work)
        if adds_none:  # an index that was skipped lacks nothing
            state = replace(state, coverage=state.coverage.with_segment(version))
        after = after.with_index(state)
    return after


def _counts(edit: Edit, after: Instant, newest: Instant) -> dict[str, object]:
    files_added = sum(r.files.num_rows for r in edit.results)
    return {
        "files_added": files_added,
        "files_removed": newest.totals["files"] + files_added - after.totals["files"],
        "rows_changed": after.totals["rows"] - newest.totals["rows"],
        "bytes_changed": after.totals["bytes"] - newest.totals["bytes"],
    }


def _check_added(snapshot: Snapshot, edit: Edit, *, is_later: bool) -> None:
    if not edit.results:
        return
    twice = first_twice(_added_paths(edit.results))
    if twice is not None:
        raise InvalidArgumentError(f"{twice}: added twice in one transaction")
    # The files that this transaction wrote have its id in their names, and the id is younger than the base: only later
    # commits can have added the path.
    looked_up = [result for result in edit.results if is_later or not result.written]
    live = live_paths(snapshot, looked_up, edit.removed) if looked_up else []
    if live:
        if is_later:
            raise CommitConflictError(f"{live[0]}: another commit added the same path", paths=live)
        raise InvalidArgumentError(f"{live[0]}: in the table already; use replace() to put a new file in its place")


def live_paths(snapshot: Snapshot, results: Sequence[TaskResult], removed: pa.Table) -> list[str]:
    """Return the paths of results that are live already, in files that are not `removed`."""
    added, removed_ids = _added_paths(results), to_numpy(removed.column("file_id"))
    if not snapshot.instant.totals["files"]:
        return []
    by_path = snapshot.partitions_in_paths and not any(r.declares_partitions for r in results)
    if len(added) <= _LOOKUPS_MAX and (by_path or not snapshot.partitions_in_paths):
        ids_by_path = snapshot.find(added.to_pylist(), are_new=True)
        is_removed = np.isin(np.fromiter(ids_by_path.values(), np.uint64, len(ids_by_path)), removed_ids)
        return [path for path, is_out in zip(ids_by_path, is_removed.tolist(), strict=True) if not is_out]
    files = snapshot.files(_partitions_of(snapshot, results), ["path"])
    same = files.filter(pc.is_in(files.column("path"), value_set=combine(added)))
    is_removed = np.isin(to_numpy(same.column("file_id")), removed_ids)
    return same.column("path").filter(from_numpy(~is_removed)).to_pylist()


def _added_paths(results: Sequence[TaskResult]) -> pa.ChunkedArray:
    return pa.chunked_array([c for r in results for c in r.files.column("path").chunks], pa.string())


def _partitions_of(snapshot: Snapshot, results: Sequence[TaskResult]) -> list[int] | None:
    """Return the partitions in which a path of results could be live already; None for all, if paths do not show it."""
    if snapshot.instant.source.get("partitions_declared") or any(r.declares_partitions for r in results):
        return None
    texts = set().union(*(r.files.column("partition").to_pylist() for r in results))
    return sorted(snapshot.partition_ids(texts).values())


# -- binding -----------------------------------------------------------------------------------------------------------


@dataclass
class Bound:
    """Entries to write, and the instant that they lead to (its runs and indexes are still those of the base).

    manifest    entries of the manifest
    added       the added files under their ids, one item per result
    removed     the removed files, with their rows in the manifest
    """

    instant: Instant
    manifest: EntryBatch
    added: list[AddedFiles]
    removed: pa.Table


def bind(
    snapshot: Snapshot,
    names_from: Instant,
    results: Sequence[TaskResult],
    removed: pa.Table,
    *,
    remember_removed: bool,
    entries: Sequence[EntryBatch] = (),
) -> Bound:
    """Bind added files and removed ones (`REMOVED`) to the version after the snapshot's. The results use the column
    names of `names_from`. With `remember_removed` the removed files may still be on storage, and the manifest records
    their paths and identities. `entries`: other entries of the manifest.

    Raise CommitConflictError if a file to remove is no longer live, and SchemaError if an added file does not fit.
    """
    base = snapshot.instant
    after = replace(base, version=base.version + 1)
    partitions = _PartitionIds(snapshot)
    added: list[AddedFiles] = []
    rows: list[pa.Table] = []
    sequence = base.next["sequence"]
    for result in results:
        after, schema_ids = _bind_schemas(after, names_from, result)
        partition_ids = partitions.of(result.files.column("partition"))
        count = result.files.num_rows
        if sequence + count >= 1 << 32:
            raise InvalidArgumentError("this table has given out all of its 2**32 file sequences")
        sequences = np.arange(sequence, sequence + count, dtype=np.uint32)
        sequence += count
        rows.append(_manifest_rows(result, schema_ids, after.version))
        schema_of = to_numpy(rows[-1].column("schema_id")).astype(np.int64)
        added.append(AddedFiles(result, manifest.file_ids(partition_ids, sequences), schema_of))
    if partitions.new:  # raises SchemaError that names one whose keys or values do not fit the table's
        hive.typed_values(list(partitions.new), [base.schema.field(name) for name in base.partitioning])
    removed_files = _removed_files(snapshot, removed)
    attached = _attached(results)
    partition_entries, change = _touched_partitions(snapshot, partitions.new, added, removed_files)
    changes = dict(zip(("files", "rows", "bytes"), change.tolist(), strict=False))
    changes["plain"] = _plain(rows) - _plain([removed_files])
    after = replace(
        after,
        next={**after.next, "sequence": sequence, "partition": partitions.next_id},
        totals={name: count + changes[name] for name, count in base.totals.items()},
    )
    bound = [partition_entries]
    for files, file_rows in zip(added, rows, strict=True):
        bound.append(_entries(manifest.KIND_FILE, files.ids, file_rows))
    if removed_files.num_rows:
        bound.append(_entries(manifest.KIND_FILE, to_numpy(removed_files.column("file_id")), None))
        if remember_removed:
            bound.append(removed_entries(removed_files.filter(from_numpy(~are_again(removed_files, attached)))))
    again = _added_again(snapshot, attached)
    if len(again):
        bound.append(_entries(manifest.KIND_REMOVED, again, None))
    return Bound(after, EntryBatch.concat([*bound, *entries], manifest.RUN_SCHEMA), added, removed_files)


def _plain(parts: Sequence[pa.Table]) -> int:
    """Return how many files are plain bases: no log, delete or commit state applies to them."""
    count = 0
    for files in parts:
        if not files.num_rows:
            continue
        plain = to_numpy(pc.equal(files.column("kind"), string_scalar(BASE)))
        for name in ("file_group", "deletes", "commit"):
            plain &= to_numpy(files.column(name).is_null())
        count += int(plain.sum())
    return count


class _PartitionIds:
    """The ids of partitions by their texts: those of a version, and the next free ids for new texts."""

    def __init__(self, snapshot: Snapshot):
        self._snapshot = snapshot
        self.next_id = snapshot.instant.next["partition"]
        self.new: dict[str, int] = {}

    def of(self, texts: pa.ChunkedArray) -> np.ndarray:
        """Return the ids of some texts: uint32 [n]."""
        encoded = texts.combine_chunks().dictionary_encode()
        names = encoded.dictionary.to_pylist()
        ids = {**self.new, **self._snapshot.partition_ids(names)}
        for text in names:
            if text not in ids:
                ids[text] = self.new[text] = self.next_id
                self.next_id += 1
        return np.array([ids[text] for text in names], dtype=np.uint32)[to_numpy(encoded.indices)]


_COUNTS = ("file_count", "live_rows", "live_bytes", "fingerprint")


def _touched_partitions(
    snapshot: Snapshot, new: Mapping[str, int], added: Sequence[AddedFiles], removed: pa.Table
) -> tuple[EntryBatch, np.ndarray]:
    """Return (the entries of the partitions that a commit touches, with tombstones of those that have no files left;
    int64 [counts]: the change of the sums of `_COUNTS`). `new`: text -> id of new partitions."""
    removed_ids = to_numpy(removed.column("file_id"))
    changes = [*(_counts_of(files.ids, files.result.files) for files in added), -_counts_of(removed_ids, removed)]
    ids = np.concatenate([*(files.ids for files in added), removed_ids])
    touched, place = np.unique(manifest.split_file_ids(ids)[0], return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(touched)))
    change = np.add.reduceat(np.concatenate(changes)[order], starts) if len(ids) else np.zeros((0, 4), dtype=np.int64)
    partitions = snapshot.partitions()
    rows = partitions.take(pc.index_in(from_numpy(touched), value_set=combine(partitions.column("partition_id"))))
    counts = np.stack([to_numpy(filled(rows.column(name), 0)) for name in _COUNTS], axis=1) + change
    names = {number: text for text, number in new.items()}
    texts = pc.coalesce(combine(rows.column("partition")), array_of([*map(names.get, touched.tolist())], pa.string()))
    values = pa.table({"partition": texts, **dict(zip(_COUNTS, map(from_numpy, counts.T), strict=True))})
    keys = manifest.KEYS.encode(kind=manifest.KIND_PARTITION, partition=touched, sequence=np.zeros_like(touched))
    return EntryBatch(keys, values, counts[:, 0] == 0), change.sum(axis=0)


def _counts_of(file_ids: np.ndarray, files: pa.Table) -> np.ndarray:
    """Return int64 [files, counts]: each file's share of its partition's counts. Sums of fingerprints wrap around."""
    rows, sizes = (to_numpy(filled(files.column(name), 0)) for name in ("row_count", "size_bytes"))
    return np.stack([np.ones_like(rows), rows, sizes, manifest.fingerprints(file_ids)], axis=1)


def _bind_schemas(after: Instant, names_from: Instant, result: TaskResult) -> tuple[Instant, np.ndarray]:
    """Return the instant with the result's physical schemas, and the id of each; the last id is of declared files."""
    numbers = {_identity(s): i for i, s in enumerate(after.file_schemas)}
    bound = schemas_of(after, names_from, result)
    for position, schema in enumerate(bound):
        if _identity(schema) not in numbers:
            example = pc.index(result.files.column("schema_id"), scalar_of(position, pa.int32())).as_py()
            check_fits(after, schema, result.files.column("path")[example].as_py() if example >= 0 else "a file")
    check_instants_fit(after, bound, result)
    if result.files.column("schema_id").null_count:
        physical = result.declared_names
        fields = [f for f in names_from.schema if f.name not in names_from.partitioning]
        declared = pa.schema([f.with_name(physical.get(f.name, f.name)) for f in fields])
        names = dict(zip(declared.names, (f.name for f in fields), strict=True))
        bound.append(file_schema(after, names_from, declared, is_declared=True, names=names))
    file_schemas = list(after.file_schemas)
    for schema in bound:
        if numbers.setdefault(_identity(schema), len(file_schemas)) == len(file_schemas):
            file_schemas.append(schema)
    ids = [numbers[_identity(schema)] for schema in bound]
    return replace(after, file_schemas=tuple(file_schemas)), np.array(ids, dtype=np.int32)


def _identity(schema: FileSchema) -> tuple:
    """Return what distinguishes file schemas: one physical schema maps to other columns before and after a rename."""
    names = tuple(schema.fields.items()), tuple(schema.columns.items()), tuple(schema.nested.items())
    return schema.schema, *names, schema.is_declared


def _manifest_rows(result: TaskResult, schema_ids: np.ndarray, version: int) -> pa.Table:
    rows = result.files.select([f.name for f in FILE_FIELDS])
    local = filled(rows.column("schema_id").combine_chunks(), len(result.schemas))
    bound = from_numpy(schema_ids.astype(np.int32)).take(local)
    position = rows.schema.get_field_index("schema_id")
    rows = rows.set_column(position, "schema_id", bound)
    return rows.append_column(manifest.SEGMENT_FIELD, from_numpy(np.full(rows.num_rows, version)))


def _removed_files(snapshot: Snapshot, removed: pa.Table) -> pa.Table:
    ids = to_numpy(removed.column("file_id"))
    if not len(ids):
        return no_files()
    partition, _ = manifest.split_file_ids(ids)
    files = snapshot.files(np.unique(partition))
    live_files = files.filter(from_numpy(np.isin(to_numpy(files.column("file_id")), ids)))
    is_lost = ~np.isin(ids, to_numpy(live_files.column("file_id")))
    if is_lost.any():
        lost = removed.column("path").filter(from_numpy(is_lost)).to_pylist()
        raise CommitConflictError(f"{lost[0]}: another commit removed or replaced it", paths=lost)
    return live_files


def _attached(results: Sequence[TaskResult]) -> pa.Table:
    """Return the identities of added files, except those that were written for this commit: their names are new."""
    parts = [result.files.select(manifest.IDENTITY) for result in results if not result.written]
    return pa.concat_tables([no_files().select(manifest.IDENTITY), *parts])


def _added_again(snapshot: Snapshot, added: pa.Table) -> np.ndarray:
    """Return the ids of removed files that a commit adds again, and that are therefore no longer recorded as removed:
    a clean would delete them. They are looked up by path, because a partition that was emptied has another number."""
    prefix = manifest.KEYS.prefix(kind=manifest.KIND_REMOVED)
    if not added.num_rows or not any(run.may_contain(prefix) for run in snapshot.instant.manifest):
        return np.empty(0, dtype=np.uint64)
    remembered = snapshot.removed_files(added.column("path").to_pylist())
    remembered = remembered.filter(from_numpy(are_again(remembered, added)))
    check_not_cleaned(remembered)
    return to_numpy(remembered.column("file_id"))


def are_again(removed: pa.Table, added: pa.Table) -> np.ndarray:
    """Return bool [removed]: the files that may be one of those added: their identities are equal in each field that
    both have. A path that is added with another identity is another file."""
    is_again = to_numpy(pc.is_in(removed.column("path"), value_set=combine(added.column("path")))).copy()
    rows = removed.select(manifest.IDENTITY).filter(from_numpy(is_again)).to_pylist()
    by_path = {row["path"]: row for row in added.select(manifest.IDENTITY).to_pylist()} if rows else {}
    pairs = [[(row[name], by_path[row["path"]][name]) for name in manifest.STAT_FIELDS] for row in rows]
    is_again[is_again] = [all(None in pair or pair[0] == pair[1] for pair in fields) for fields in pairs]
    return is_again


def check_not_cleaned(removed: pa.Table) -> None:
    """Raise CommitConflictError if a removed file is added again although a clean removes it from storage."""
    paths = (
        removed.filter(pc.equal(removed.column("kind"), manifest.CLEANED).fill_null(False)).column("path").to_pylist()
    )
    if paths:
        raise CommitConflictError(f"{paths[0]}: a clean removed it from storage", paths=paths)


def _entries(kind: int, numbers: np.ndarray, rows: pa.Table | None) -> EntryBatch:
    """Return entries of a kind under some numbers; tombstones if `rows` is None."""
    partition, sequence = manifest.split_file_ids(numbers)
    keys = manifest.KEYS.encode(kind=kind, partition=partition, sequence=sequence)
    if rows is None:
        rows = pa.table({"path": pa.nulls(len(numbers))})
        return EntryBatch(keys, rows, np.ones(len(numbers), dtype=bool))
    return EntryBatch(keys, rows, np.zeros(len(numbers), dtype=bool))


def file_entries(ids: np.ndarray, rows: pa.Table) -> EntryBatch:
    """Return entries of live files, under their ids: the manifest's fields of each."""
    return _entries(manifest.KIND_FILE, ids, rows)


def removed_entries(files: pa.Table, *, are_cleaned: bool = False) -> EntryBatch:
    """Return entries that record removed files: path, identity and the segment that added them. With `are_cleaned` they
    also record that a clean removes the files from storage, so that no commit adds them again."""
    rows = files.select([*manifest.IDENTITY, manifest.SEGMENT_FIELD.name])
    if are_cleaned:
        rows = rows.append_column("kind", pa.repeat(manifest.CLEANED, rows.num_rows))
    return _entries(manifest.KIND_REMOVED, to_numpy(files.column("file_id")), rows)


def key_entry(key: str, version: int) -> EntryBatch:
    """Return the entry of the key of an idempotent commit, which created a version."""
    row = pa.table({"path": [key], manifest.SEGMENT_FIELD.name: [version]})
    return _entries(manifest.KIND_KEY, np.array([manifest.key_number(key)], dtype=np.uint64), row)
