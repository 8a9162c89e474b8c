"""Adopt columns: find those that files contain and the table does not read, and bind the files to them again.

A file is bound to columns once, by the names that the table has at that time; its other columns stay unread. A name
that no column of this table ever had can become a column. A name that another column had, before a rename or a drop,
cannot. Older files are then bound again, under new ids, so that no index covers their earlier state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, string_scalar, to_numpy
from ..indexes.task_result import TaskResult
from ..lakes import is_log
from ..lakes.directory import listed_of
from ..parquet.footers import FILE_ERRORS
from ..state import FileSchema, Instant
from ..state.lsm import RunWriter
from ..state.manifest import BASE, STAT_FIELDS
from ..state.snapshot import Snapshot
from ..storage import Entry, Storage
from ..storage.threads import STAT_THREADS, prefetched
from ..tasks.attach import AttachRequest, FooterReading, attach_all
from .commit import WriteBatch
from .schemas import misfits, widens, without

if TYPE_CHECKING:
    from ..handle import Handle

_OF_SLICES = ["file_group", "commit", "deletes"]


def names_ever(instant: Instant) -> set[str]:
    """Return every name that a column of this table has or had, or under which a file stores one."""
    return {*instant.fields, *instant.retired, *(name for schema in instant.file_schemas for name in schema.fields)}


def unread_columns(instant: Instant, schema: FileSchema) -> list[str]:
    """Return the columns that files of a schema contain and that are not read, except columns of type null."""
    if schema.is_declared or is_log(instant.source):
        return []
    return [
        f.name
        for f in schema.schema
        if f.name not in schema.fields and f.name not in instant.partitioning and not pa.types.is_null(f.type)
    ]


def live_schemas(snapshot: Snapshot, leave: Iterable[int] = ()) -> list[tuple[FileSchema, int]]:
    """Return the file schemas of live files that contain unread columns, each with the number of its files. `leave`:
    ids of files that do not count."""
    instant = snapshot.instant
    if not any(unread_columns(instant, schema) for schema in instant.file_schemas):
        return []
    files = snapshot.files(columns=["schema_id"])
    stays = ~np.isin(to_numpy(files.column("file_id")), np.array(sorted(leave), np.uint64))
    counts = Counter(files.column("schema_id").filter(from_numpy(stays)).to_pylist())
    live = [(instant.file_schemas[number], count) for number, count in counts.items()]
    return [(schema, count) for schema, count in live if unread_columns(instant, schema)]


# -- files that are bound again ---------------------------------------------------------------------------------------


def bound_names(after: Instant, schema: FileSchema) -> dict[str, str]:
    """Return the table's names of the columns of some files, by their names in the files: the columns that the files
    are bound to, and those that another binding would add."""
    names = {number: name for name, number in after.fields.items()}
    bound = {physical: names[number] for physical, number in schema.fields.items() if number in names}
    return {**bound, **{name: name for name in sure_columns(after, schema)}}


def sure_columns(after: Instant, schema: FileSchema) -> list[str]:
    """Return the table's columns that files of a schema contain unread. Each has had only this one name, and its type
    contains all values of the file's type."""
    sure = []
    for name in unread_columns(after, schema):
        if name in after.fields and name not in after.retired:
            number = after.fields[name]
            pairs = {(n, i) for s in after.file_schemas for n, i in s.fields.items() if n == name or i == number}
            if pairs <= {(name, number)} and widens(schema.schema.field(name).type, after.schema.field(name).type):
                sure.append(name)
    return sure


def bind_again(
    handle: Handle, snapshot: Snapshot, after: Instant, writing: RunWriter | WriteBatch, leave: Iterable[int] = ()
) -> tuple[list[TaskResult], dict[int, str]]:
    """Read the footers of live files that contain unread columns of `after`. Return (the files to add, id -> path of
    the same files to remove). `leave`: ids of files to skip."""
    numbers = [number for number, schema in enumerate(after.file_schemas) if sure_columns(after, schema)]
    rows, listed = _unchanged(handle.storage, snapshot, numbers, leave) if numbers else ({}, None)
    if listed is None or not rows:
        return [], {}
    reading = FooterReading(handle.is_hive, after.stats_paths())
    storages = handle.storage, handle.index_storage
    request = AttachRequest(*storages, writing.transaction, listed, writing.leftovers, reading)
    results, _ = attach_all(request, part=f"rebound-{snapshot.instant.version}")
    for result in results:
        _bind_as_before(result, rows, after)
    results = without(results, misfits(after, results, snapshot.ids_by_text()), handle.index_storage)
    # A file that could not be read, or does not fit after all, stays unchanged.
    read = [path for result in results for path in result.files.column("path").to_pylist()]
    return results, {rows[path]["file_id"]: path for path in read}


def _unchanged(
    storage: Storage, snapshot: Snapshot, schema_ids: Sequence[int], leave: Iterable[int]
) -> tuple[dict[str, dict], pa.Table]:
    """Return the live files of some file schemas that are unchanged on storage: (path -> row of the manifest, with the
    text of its partition; the same files as a listing). Skip files of slices: the log's own writer bound them."""
    files = snapshot.files(columns=["path", "kind", "schema_id", *STAT_FIELDS, *_OF_SLICES])
    wanted = np.isin(to_numpy(files.column("schema_id")), schema_ids)
    wanted &= ~np.isin(to_numpy(files.column("file_id")), np.array(sorted(leave), np.uint64))
    wanted &= to_numpy(pc.equal(files.column("kind"), string_scalar(BASE)))
    for name in _OF_SLICES:
        wanted &= to_numpy(files.column(name).is_null())
    rows = files.filter(from_numpy(wanted)).to_pylist()

    def entry(row: dict) -> Entry | None:
        try:
            current = storage.stat(row["path"])
        except FILE_ERRORS:
            return None
        return current if current.is_same(*(row[name] for name in STAT_FIELDS)) else None

    entries = list(prefetched(entry, rows, STAT_THREADS, "skipstone-stat"))
    texts = {number: text for text, number in snapshot.ids_by_text().items()}
    pairs = [(row, current) for row, current in zip(rows, entries, strict=True) if current is not None]
    by_path = {row["path"]: {**row, "partition": texts[row["partition_id"]]} for row, _ in pairs}
    return by_path, listed_of(current for _, current in pairs)


def _bind_as_before(result: TaskResult, rows: dict[str, dict], after: Instant) -> None:
    """Give the files of a result the partitions and columns that they had before (`rows`), and the new columns."""
    schemas: dict[tuple[int, int], int] = {}  # (what a file contains, what it was bound to) -> its schema
    texts, ids = [], []
    for path, own_schema in zip(
        *(result.files.column(name).to_pylist() for name in ("path", "schema_id")), strict=True
    ):
        texts.append(rows[path]["partition"])
        ids.append(schemas.setdefault((own_schema, rows[path]["schema_id"]), len(schemas)))
    for name, values in (("partition", pa.array(texts, pa.string())), ("schema_id", pa.array(ids, pa.int32()))):
        result.files = result.files.set_column(result.files.schema.get_field_index(name), name, values)
    result.names = [bound_names(after, after.file_schemas[bound_schema]) for _, bound_schema in schemas]
    result.schemas = [result.schemas[own_schema] for own_schema, _ in schemas]
    result.declares_partitions = bool(after.source.get("partitions_declared"))
