"""Attaching the live files of a log: from their footers, or, if files are not opened, from the log alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import string_array, string_scalar
from ...errors import SkipstoneError
from ..indexes.task_result import FILE_STATS_SCHEMA, TaskResult, quarantined_file
from ..lakes.column_naming import ColumnNaming, normalized_schema
from ..parquet.footers import FILE_ERRORS, Footer, marked, open_parquet
from ..parquet.leaves import leaf_names
from ..progress import Progress
from ..state.manifest import BASE, FILES_SCHEMA
from ..storage import Entry, Storage
from ..storage.threads import FOOTER_THREADS, STAT_THREADS, prefetched, threads_for
from .attach import COLUMNS_MAX, FooterReading, attach_files, column_filter

_OF_SLICES = ("file_group", "slice_instant", "commit", "merge")


def attach_log(
    storage: Storage,
    index_storage: Storage,
    index_path: str,
    files: pa.Table,
    naming: ColumnNaming,
    columns: Sequence[str] | None,
    progress: Progress | None,
) -> list[TaskResult]:
    """Read the footers of live files (LOG_FILES) and write one task index file for them. Files that cannot be read, or
    do not have the size that the log records, are declared nevertheless, because they are live and may match;
    `quarantined` of the last result lists them. Log files of slices are declared without being opened."""
    is_base = _is_base(files)
    logs, files = files.filter(pc.invert(is_base)), files.filter(is_base)
    rows = {row["path"]: row for row in files.to_pylist()}
    wanted = column_filter(columns)
    entries, unread = [], []
    for row, found in zip(
        rows.values(),
        prefetched(_stat(storage), list(rows), threads_for(storage, STAT_THREADS), "skipstone-stat"),
        strict=True,
    ):
        if isinstance(found, Entry) and found.size_bytes == row["size_bytes"]:
            entries.append(found)
        else:
            problem = "its size is not the one in the log" if isinstance(found, Entry) else str(found)
            unread.append(quarantined_file(row["path"], problem))

    misfits: dict[str, str] = {}

    def as_declared(entry: Entry, footer: Footer) -> dict[str, Any] | None:
        assert footer.stored_schema is not None
        row = rows[entry.path]
        schema = normalized_schema(footer.stored_schema)
        misfit = naming.misfit_of(schema)
        if misfit is not None:
            misfits[entry.path] = misfit
            return None
        names = naming.names_in(footer.stored_schema, entry.path, row["log_only"])
        shown = leaf_names(schema, names.nested)
        stats = {
            path: parts
            for path, parts in footer.stats.items()
            if wanted(_in_table(shown.get(path, path), names.columns))
        }
        return {
            "partition": row["partition"],
            "deletes": row["deletes"],
            "schema": schema,
            "names": names.columns,
            "nested": names.nested,
            "stats": stats if columns is not None else dict(islice(stats.items(), COLUMNS_MAX)),
            "of_slice": {name: row[name] for name in _OF_SLICES},
        }

    result = attach_files(
        storage,
        index_storage,
        index_path,
        entries,
        FooterReading(hive_partitioned=False, columns=columns),
        progress=progress,
        as_declared=as_declared,
    )
    result.declares_partitions = True
    unread += result.quarantined
    result.quarantined = []
    results = [result] if result.files.num_rows else []
    misfit_files = _marked(files, misfits)
    if misfit_files.num_rows:
        results.append(declared_result(misfit_files, naming))
    if logs.num_rows:
        results.append(declared_result(logs, naming))
    if unread:
        paths = string_array([file["path"] for file in unread])
        left = declared_result(files.filter(pc.is_in(files.column("path"), value_set=paths)), naming)
        left.quarantined = unread
        results.append(left)
    return results


def _is_base(files: pa.Table) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(files.column("kind"), string_scalar(BASE)), True)


def _marked(files: pa.Table, reasons: dict[str, str]) -> pa.Table:
    """Return some files (path -> why Skipstone must not read their rows), marked with the reason."""
    files = files.filter(pc.is_in(files.column("path"), value_set=string_array(list(reasons))))
    reasons_text = string_array([reasons[path] for path in files.column("path").to_pylist()])
    return files.set_column(files.schema.get_field_index("deletes"), "deletes", reasons_text)


def _stat(storage: Storage) -> Callable[[str], Entry | SkipstoneError]:
    def stat(path: str) -> Entry | SkipstoneError:
        try:
            return storage.stat(path)
        except FILE_ERRORS as error:
            return error

    return stat


def _in_table(path: str, names: dict[str, str]) -> str:
    """Return the table's name of a file's leaf; "" if its column is not the table's."""
    for physical, name in names.items():
        if path == physical or path.startswith(f"{physical}."):
            return name + path[len(physical) :]
    return ""


def declared_result(files: pa.Table, naming: ColumnNaming) -> TaskResult:
    """Return a result of live files (LOG_FILES) about which only the log's facts are known. If a file must be opened to
    learn the names of its columns, the file is marked, because Skipstone must not read its rows."""
    physical_names: dict[str, str] = {}
    if naming.is_per_file:
        deletes = files.schema.get_field_index("deletes")
        files = files.set_column(deletes, "deletes", pc.fill_null(files.column("deletes"), "unopened"))
    else:
        physical_names = {name: file for file, name in (naming.physical or {}).items() if name != file}
    return _result(files, pa.nulls(files.num_rows, pa.int32()), declared_names=physical_names)


def opened(storage: Storage, files: pa.Table, naming: ColumnNaming) -> list[TaskResult]:
    """Return the same after reading the names of their columns, and their types if files may have other types. The
    names stay unknown for files that cannot be opened."""
    if naming.types is not None:
        paths = files.filter(_is_base(files)).column("path").to_pylist()
        schemas = prefetched(_schema(storage), paths, threads_for(storage, FOOTER_THREADS), "skipstone-schemas")
        misfits = ((path, naming.misfit_of(normalized_schema(s))) for path, s in zip(paths, schemas, strict=True) if s)
        reasons = {path: misfit for path, misfit in misfits if misfit is not None}
        marked = _marked(files, reasons)
        others = files.filter(pc.invert(pc.is_in(files.column("path"), value_set=marked.column("path").unique())))
        files = pa.concat_tables([others, marked])
    if not naming.is_per_file:
        return [declared_result(files, naming)] if files.num_rows else []
    bound: dict[tuple[pa.Schema, tuple, tuple], int] = {}
    numbers: list[int | None] = []
    paths, values_of_log = files.column("path").to_pylist(), files.column("log_only").to_pylist()
    schemas = prefetched(_schema(storage), paths, threads_for(storage, FOOTER_THREADS), "skipstone-schemas")
    for path, log_only, schema in zip(paths, values_of_log, schemas, strict=True):
        if schema is None:
            numbers.append(None)
        else:
            names = naming.names_in(schema, path, log_only)
            key = normalized_schema(schema), tuple(names.columns.items()), tuple(names.nested.items())
            numbers.append(bound.setdefault(key, len(bound)))
    ids = pa.array(numbers, pa.int32())
    closed = files.filter(ids.is_null())
    opened_files = _result(files.filter(ids.is_valid()), ids.drop_null())
    opened_files.schemas = [schema for schema, _, _ in bound]
    opened_files.names = [dict(names) for _, names, _ in bound]
    opened_files.nested = [dict(nested) for _, _, nested in bound]
    return [r for r in (opened_files, declared_result(closed, naming)) if r.files.num_rows]


def _schema(storage: Storage) -> Callable[[str], pa.Schema | None]:
    def schema(path: str) -> pa.Schema | None:
        try:
            with open_parquet(storage, storage.stat(path), is_checked=False) as file:
                return marked(file.arrow_schema, file.parsed)
        except FILE_ERRORS:
            return None

    return schema


def _result(files: pa.Table, schema_ids: pa.Array, **more: Any) -> TaskResult:
    count = files.num_rows
    declared = {
        "kind": pc.fill_null(files.column("kind"), string_scalar(BASE)),
        "rows_exact": pc.and_(files.column("deletes").is_null(), files.column("row_count").is_valid()),
        "row_count": pc.fill_null(files.column("row_count"), 0),
        "schema_id": schema_ids,
    }
    columns = {
        name: files.column(name) for name in ("path", "partition", "size_bytes", "deletes", *_OF_SLICES)
    } | declared
    rows = [columns.get(f.name, pa.nulls(count, f.type)) for f in FILES_SCHEMA]
    return TaskResult(
        files=pa.Table.from_arrays(rows, schema=FILES_SCHEMA),
        schemas=[],
        stats=FILE_STATS_SCHEMA.empty_table(),
        stats_columns=[],
        declares_partitions=True,
        **more,
    )
