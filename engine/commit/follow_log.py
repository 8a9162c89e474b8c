"""Following the log of another format: turn a state of it into columns of the table, and files added and removed.

The result is bound to a version either by a commit (`sync.py`), or for one handle (`with_tail`). Such a handle pins
a pair: a version of Skipstone's, and a state of the log. The changes between them are bound to the version just as a
commit would bind them, but the run of the manifest stays in memory, and no index covers it: added files may match,
removed ones are not read.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, from_numpy, string_array, string_scalar, to_numpy
from ...errors import NotReadableError
from ..indexes.task_result import TaskResult
from ..lakes import DELTA
from ..lakes.column_naming import ColumnNaming, Columns, fields_of, is_cast_by_text
from ..lakes.table_format import LogState, describe, recorded_state
from ..parquet.leaves import has_field, in_table_names, leaf_types
from ..predicates.coerce import merged_type
from ..state import Coverage, FileSchema, IndexState, Instant, Run, manifest
from ..state.paths import first_twice
from ..state.run_format import MANIFEST_FORMAT, SHARD_BYTES, EntryBatch
from ..state.runs import RunReaders
from ..state.snapshot import LogTail, Snapshot
from ..storage import Storage
from ..tasks.attach import COLUMNS_MAX
from ..tasks.log_attach import opened
from .edit import REMOVED, bind
from .schemas import check_table_schema, identified, with_indexes_left, with_leaves

# The fields, with path and size, that distinguish a file from the same file at another state of the log.
_AS_TEXTS = ("deletes", "kind", "file_group", "slice_instant", "commit", "merge")


@dataclass
class Followed:
    """The changes that a state of the log makes to a version.

    instant    the version with the columns of that state; its files are still those of the version (or none, if the
               table was created again: then all live files are added)
    naming     how the added files name their columns
    added      files that were added (LOG_FILES)
    removed    the removed files (`bind.REMOVED`)
    """

    instant: Instant
    naming: ColumnNaming
    added: pa.Table
    removed: pa.Table


def followed(instant: Instant, readers: RunReaders, state: LogState) -> Followed:
    """Return the changes if a version follows the log to a state. Raise SchemaError or NotReadableError for columns
    that cannot be followed."""
    after = at_state(instant, state)
    is_fresh = is_fresh_start(instant, after)
    columns, changes = state.columns, state.changes
    if columns is not None:
        naming = columns.naming
    else:
        names = {number: name for name, number in after.fields.items()}
        naming = ColumnNaming({key: names[number] for key, number in after.source["keys"].items()})
    if is_fresh:
        files = changes.added if changes.removed is None else state.live_files()
        return Followed(after, naming, _once(files), REMOVED.empty_table())
    added, removed = changes.added, changes.removed
    before = Snapshot(after, readers)
    if removed is None:
        live = before.files(columns=["path", "size_bytes", *_AS_TEXTS])
        added, removed_files = _compared(live, _once(added), before.ids_by_text())
    else:
        added_paths = set(added.column("path").to_pylist())
        if not added_paths and not removed and not changes.groups:
            return Followed(after, naming, added, REMOVED.empty_table())
        texts = {*added.column("partition").to_pylist(), *(partition for partition, _ in changes.groups)}
        ids = sorted(before.partition_ids(texts).values()) if removed <= added_paths else None
        needed = ["path", "file_group"] if changes.groups else ["path"]
        live = before.files(ids, needed)
        if ids is not None and not removed.issubset(live.column("path").to_pylist()):  # of another partition before
            live = before.files(None, needed)
        is_lost = to_numpy(pc.is_in(live.column("path"), value_set=string_array([*removed, *added_paths])))
        removed_files = live.filter(from_numpy(is_lost | _in_groups(before, live, changes.groups)))
    return Followed(after, naming, added, removed_files.select(REMOVED.names))


def _in_groups(snapshot: Snapshot, files: pa.Table, groups: frozenset[tuple[str, str]]) -> np.ndarray:
    """Return bool [files]: True for files of some file groups, each given as (the partition's text, the group)."""
    is_in = np.zeros(files.num_rows, dtype=bool)
    if groups:
        ids = snapshot.ids_by_text()
        wanted = {(ids.get(partition), group) for partition, group in groups}
        named = pc.is_in(files.column("file_group"), value_set=string_array([group for _, group in wanted]))
        for i in np.flatnonzero(to_numpy(named)).tolist():
            is_in[i] = (files["partition_id"][i].as_py(), files["file_group"][i].as_py()) in wanted
    return is_in


def _once(files: pa.Table) -> pa.Table:
    twice = first_twice(files.column("path"))
    if twice is not None:
        raise NotReadableError(
            f"{twice}: the log has this live file twice; its own reader may know what it means", paths=[twice]
        )
    return files


def _compared(live: pa.Table, listed: pa.Table, partitions: Mapping[str, int]) -> tuple[pa.Table, pa.Table]:
    """Return (listed files that are not live unchanged, live files that are not listed unchanged). `partitions`: the
    ids of their texts."""
    rows = pc.index_in(listed.column("path"), value_set=combine(live.column("path")))
    before = live.select(["partition_id", "size_bytes", *_AS_TEXTS]).take(combine(rows))
    is_same = to_numpy(pc.fill_null(pc.equal(before.column("size_bytes"), listed.column("size_bytes")), False))
    ids = pa.array([partitions.get(text) for text in listed.column("partition").to_pylist()], pa.uint32())
    is_same = is_same & to_numpy(pc.fill_null(pc.equal(before.column("partition_id"), ids), False))
    for name in _AS_TEXTS:
        one, other = before.column(name), listed.column(name)
        if name == "kind":
            other = pc.fill_null(other, string_scalar(manifest.BASE))
        is_same = (
            is_same
            & (to_numpy(one.is_null()) == to_numpy(other.is_null()))
            & to_numpy(pc.fill_null(pc.equal(one, other), True))
        )
    stays = np.zeros(live.num_rows, dtype=bool)
    stays[to_numpy(pc.fill_null(rows, 0)).astype(np.int64)[is_same]] = True
    return listed.filter(from_numpy(~is_same)), live.filter(from_numpy(~stays))


# -- columns ----------------------------------------------------------------------------------------------------------


def at_state(base: Instant, state: LogState) -> Instant:
    """Return a version with the source and the columns of another state of its log. A column keeps its id while the log
    identifies it by the same key and its type contains all earlier values. Nothing is kept of a table that was created
    again, nor of one whose files may not have its types because a type no longer contains its earlier values, or may
    have a column that the table lacked when they were bound."""
    columns = state.columns
    source = {**base.source, **describe(state)}
    if columns is None:
        return replace(base, source=source)
    last = recorded_state(base)
    # Files are read by the names within their columns at the time when they were bound.
    inner = base.source.get("inner", {})
    keys = [columns.keys[name] for name in columns.partitioning]
    stays = state.table_id == last.table_id and tuple(columns.partitioning) == base.partitioning
    stays = stays and [key for key, _ in last.partitioning] == keys
    stays = stays and not _renamed_within(inner, columns.inner) and not _may_have(base, inner, columns.inner)
    stays = stays and not _may_have_column(base, columns)
    stays = stays and not _remapped(base, columns.naming)
    stays = stays and not any(str(number) not in inner for number in columns.naming.nested_defaults)
    if state.kind == DELTA and not inner and any(pa.types.is_nested(f.type) for f in base.schema):
        # Until its columns were mapped, the names in files were the table's.
        stays = stays and all(path == physical for physical, path in columns.inner.items())
    stays = stays and all(_same_texts(columns.schema.field(f.name).type, f.type) for _, f in last.partitioning)
    if columns.naming.types is not None:  # otherwise earlier files would no longer fit
        stays = stays and all(
            _contains(f.type, (old := base.schema.field(f.name).type)) and not is_cast_by_text(f.type, old)
            for f in columns.schema
            if f.name in base.fields
        )
    if not stays:
        return fresh(base, columns, source)
    return _evolved(base, columns, {**source, "inner": {**inner, **columns.inner}})


def _renamed_within(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """Return the ids of fields within columns (`Columns.inner`) whose path changed, or was that of another field."""
    ids = {path: number for number, path in before.items()}
    return {n for n, path in after.items() if before.get(n, path) != path or ids.get(path, n) != n}


def _mapping_texts(naming: ColumnNaming) -> dict[str, dict[str, str]]:
    if naming.fallback is None:
        return {}
    return {"mapping": {json.dumps(path): str(number) for path, number in naming.fallback.items()}}


def _remapped(base: Instant, naming: ColumnNaming) -> bool:
    """Return whether a file without field ids may have a field that the mapping of names assigned to another column
    before, or to none."""
    if naming.fallback is None:
        return False
    before, now = _mapping_of(base), {path: str(number) for path, number in naming.fallback.items()}
    differing = {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}
    return any(path in differing for file in base.file_schemas for path, _ in fields_of(file.schema))


def _mapping_of(base: Instant) -> dict[tuple[str, ...], str]:
    """Return {path of names in a file: key} by which a version read files without field ids. A table that had no
    mapping of names reads them only if each field still has its first name, which contains no dot."""
    if "mapping" in base.source:
        return {tuple(json.loads(path)): number for path, number in base.source["mapping"].items()}
    names = {number: name for name, number in base.fields.items()}
    columns = {key: names[number] for key, number in base.source["keys"].items() if number in names}
    mapping: dict[tuple[str, ...], str] = {(name,): key for key, name in columns.items()}
    for number, path in base.source.get("inner", {}).items():
        key, *below = path.split(".")
        if key in columns:
            mapping[(columns[key], *below)] = number
    return mapping


def _may_have_column(base: Instant, columns: Columns) -> bool:
    """Return whether files may have a column that the table lacked when they were bound, because it was dropped."""
    naming, last = columns.naming, base.source.get("last_id")
    new = {name for name, key in columns.keys.items() if key not in base.source["keys"]}
    if naming.is_by_name or not new:
        return False
    if naming.ids:
        numbers = {number for number, path in naming.ids.items() if path in new}
        if last is not None and min(numbers, default=0) > last:
            return False
        return any(file.is_declared or set(file.schema.names) - file.fields.keys() for file in base.file_schemas)
    named = {physical for physical, name in (naming.physical or {}).items() if name in new}
    return any(file.is_declared or named.intersection(file.schema.names) for file in base.file_schemas)


def _may_have(base: Instant, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Return whether files may have a field within a column that is new to the table, or another under its name, or one
    that the table lacked when they were bound."""
    keys = {number: key for key, number in base.source["keys"].items()}
    had = {".".join((keys[base.fields[name]], *below)) for (name, *below), _ in fields_of(base.schema)}
    paths = [path for number, path in after.items() if number not in before or path not in had]
    for file in base.file_schemas if paths else ():
        named = in_table_names(file.schema, file.nested)
        for field_name, number in file.fields.items():
            start, kind = f"{keys[number]}.", named.field(field_name).type
            below = [path.removeprefix(start) for path in paths if path.startswith(start)]
            is_unsure = file.is_declared or any(p[0] == field_name and name is None for p, name in file.nested.items())
            if any(is_unsure or has_field(kind, path) for path in below):
                return True
    return False


def is_fresh_start(before: Instant, after: Instant) -> bool:
    """Return whether `at_state` kept nothing of a version."""
    return not {i.id for i in before.indexes}.intersection(i.id for i in after.indexes)


def fresh(base: Instant, columns: Columns, source: dict, chosen: tuple[str, ...] | None = None) -> Instant:
    """Return a version without files, with the columns of a state and ids that were never used. It keeps statistics of
    the `chosen` leaves (default: all, up to a limit); filters of columns that still exist start empty."""
    check_table_schema(columns.schema, columns.partitioning)
    after = identified(replace(base, indexes=()), columns.schema, {})
    data_paths = [path for path in leaf_types(columns.schema) if path not in columns.partitioning]
    with_stats = [path for path in data_paths if chosen is None or path in chosen]
    coverage = Coverage.up_to(base.version)
    stats = tuple(after.columns[path] for path in (with_stats if chosen is not None else with_stats[:COLUMNS_MAX]))
    after = after.with_new_index(IndexState.of_statistics(stats, coverage=coverage))
    for index in base.indexes:
        paths = base.names_of(index)
        if not index.is_statistics and all(path in data_paths for path in paths):
            ids = tuple(after.columns[path] for path in paths)
            after = after.with_new_index(replace(index, columns=ids, runs=(), coverage=coverage))
    return replace(
        after,
        source={
            **{name: value for name, value in source.items() if name != "mapping"},
            **_mapping_texts(columns.naming),
            "keys": {key: after.fields[name] for name, key in columns.keys.items()},
            "inner": dict(columns.inner),
        },
        partitioning=tuple(columns.partitioning),
        file_schemas=(),
        manifest=(),
        derived=(),
        totals={"files": 0, "rows": 0, "bytes": 0, "plain": 0},
        quarantined=(),
        commit_states={},
        defaults={after.fields[name]: value for name, value in columns.defaults.items()},
    )


def _evolved(base: Instant, columns: Columns, source: dict) -> Instant:
    old_fields = base.source["keys"]
    names = {number: name for name, number in base.fields.items()}
    kept_fields = {}
    for name, key in columns.keys.items():
        number = old_fields.get(key)
        if number is not None and _contains(columns.schema.field(name).type, base.schema.field(names[number]).type):
            kept_fields[name] = number
    after = identified(base, columns.schema, kept_fields)
    keys = {key: after.fields[name] for name, key in columns.keys.items()}
    after = replace(
        after,
        source={**source, **_mapping_texts(columns.naming), "keys": keys},
        defaults={after.fields[name]: value for name, value in columns.defaults.items()},
    )
    old_keys = {number: key for key, number in old_fields.items()}
    moved = tuple(_moved(after, file_schema, old_keys, columns.naming.is_by_name) for file_schema in base.file_schemas)
    after = with_indexes_left(replace(after, file_schemas=moved))
    new = tuple(sorted(set(after.columns.values()) - set(base.columns.values())))
    return after.with_new_index(IndexState.of_statistics(new, {"shard_bytes": SHARD_BYTES})) if new else after


def _contains(kind: pa.DataType, old: pa.DataType) -> bool:
    return merged_type(kind, old) == kind


def _same_texts(kind: pa.DataType, old: pa.DataType) -> bool:
    """Return whether a partition column contains its earlier values, in the same texts: a double 7 is `7.0`."""
    return kind == old or (pa.types.is_integer(kind) and _contains(kind, old))


def _moved(after: Instant, before: FileSchema, old_keys: dict[int, str], by_name: bool) -> FileSchema:
    """Return a file schema under the columns of another state. If files are read by name alone, a file may contain a
    new column that is younger than the file."""
    keys = after.source["keys"]
    fields = {name: keys[old_keys[number]] for name, number in before.fields.items() if old_keys.get(number) in keys}
    schema = before.schema
    if by_name:
        data = {name: number for name, number in after.fields.items() if name not in after.partitioning}
        if before.is_declared:
            schema = pa.schema([*schema, *(after.schema.field(n) for n in data if schema.get_field_index(n) < 0)])
        fields = {name: data[name] for name in schema.names if name in data}
    return with_leaves(after, replace(before, schema=schema, fields=fields, columns={}))


# -- the tail of the log, for one handle ------------------------------------------------------------------------------


def with_tail(instant: Instant, readers: RunReaders, storage: Storage, state: LogState) -> Snapshot:
    """Return a version together with another state of its log."""
    changes = followed(instant, readers, state)
    results = opened(storage, changes.added, changes.naming)
    snapshot = with_files(changes.instant, readers, instant.version, results, changes.removed)
    removed = changes.removed.num_rows if changes.instant.manifest else instant.totals["files"]
    snapshot.tail = LogTail(state.position, state.version, changes.added.num_rows, removed)
    return snapshot


def with_files(
    base: Instant, readers: RunReaders, version: int, results: Sequence[TaskResult], removed: pa.Table
) -> Snapshot:
    """Return a version for one handle: `base` with more files, which no index covers, and without the removed ones."""
    bound = bind(Snapshot(base, readers), base, results, removed, remember_removed=False)
    ids = np.concatenate([np.empty(0, dtype=np.uint64), *(files.ids for files in bound.added)]).tolist()
    manifest = base.manifest
    if len(bound.manifest[0]):
        run, data = _in_memory(*bound.manifest, version + 1)
        manifest, readers = (*manifest, run), readers.with_run_in_memory(run, data)
    indexes = []
    for index in bound.instant.indexes:
        holes = (*index.coverage.holes, *((number, number) for number in ids))
        indexes.append(replace(index, coverage=index.coverage.with_holes(holes)))
    return Snapshot(replace(bound.instant, version=version, manifest=manifest, indexes=tuple(indexes)), readers)


def _in_memory(keys: pa.Array, rows: pa.Table, deleted: np.ndarray, segment: int) -> tuple[Run, bytes]:
    """Return a run of the manifest that exists only in memory, and only for this handle."""
    data = EntryBatch(keys, rows, deleted).encoded(MANIFEST_FORMAT)
    ends = (bound.as_py().hex() for bound in pc.min_max(keys).values())
    return Run(f"tail/{uuid.uuid4().hex}", len(data), len(keys), (segment, segment), *ends), data
