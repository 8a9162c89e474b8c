"""Creating the index of a lake, or an empty table."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import empty_table, field_index, scalar_of
from ..errors import CorruptionError, InvalidArgumentError, NotATableError, SchemaError
from . import hive
from .choices import OnMisfit, TableSource
from .commit.commit import WriteBatch, commit
from .commit.edit import Edit
from .commit.schemas import (
    check_table_schema,
    identified,
    minority,
    misfits,
    quarantined_of,
    unified,
    with_partition_columns,
    without,
)
from .handle import Handle
from .indexes.task_result import TaskResult
from .lakes import DIRECTORY, ICEBERG, KINDS
from .lakes.detect import detect_format, locate, open_log
from .lakes.directory import LISTED, folder_times, hidden_by_index, list_parquet, listed_of, with_index_folder
from .lakes.table_marker import read_marker, without_index
from .opening import new_handle
from .parquet.leaves import leaf_types, plain_type
from .progress import Progress, progress_function
from .state import IndexState, Instant, Timeline, new_transaction_id, now_us
from .state.publishing import UnpublishedFiles
from .state.runs import RunReaders
from .storage import FileMissingError, Storage, open_storages, recorded_name, relative_path
from .storage.threads import STAT_THREADS, prefetched, threads_for
from .storage.wrappers import WriteBuffer
from .table import Table
from .tasks.attach import COLUMNS_MAX, Attacher, AttachRequest, FooterReading, attach_all, column_filter
from .tasks.declared import declared_files, declared_partitions

_MISFITS_SHOWN = 10
_EMPTY = "to create an empty table, pass {schema}"


def create(
    location: Any = None,
    *,
    schema: pa.Schema | None = None,
    partitioning: Literal["hive"] | str | Sequence[str] | pa.Schema | None = "hive",
    source: TableSource | None = None,
    files: Sequence[str] | pa.Table | None = None,
    columns: Sequence[str] | None = None,
    index_path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    name: str | None = None,
    catalog: Any = None,
    on_misfit: OnMisfit = "raise",
    ignore_deletes: bool = False,
    progress: Progress | bool | None = None,
    attach: Attacher = attach_all,
) -> Table:
    """Index Parquet files in place, by reading only their footers; or create an empty table.

    Args:
        location: the table's directory, or its URI in an object store (s3://, gs://, az://); or a table object of
            deltalake (its log is indexed at its latest version) or pyiceberg. An Iceberg table is named by its metadata
            file (pyiceberg's `table.metadata_location`); by its directory and source="iceberg", which uses the newest
            metadata file; or by its name in `catalog`.
        schema: the schema of an empty table, partition columns included.
        partitioning: "hive" (keys and types from the paths), a pyarrow Schema that declares the keys' types, the names
            of an empty table's partition columns, or None.
        source: "directory": every Parquet file. "delta", "iceberg", "hudi": the live files of the table's log, which
            also defines columns and partitions. None looks for a log in the folder and in those above it: a Delta or
            Hudi table is followed; an Iceberg table, and a folder within a table, raise. Files that are named in
            `files` need no log.
        files: exactly these files; nothing is listed. A list of paths, whose footers are read; or an Arrow table as for
            `Transaction.add_files` (path, size_bytes, row_count, ...), with `schema`: then no file is read, and files
            need not be readable.
        columns: which columns get statistics (default: the first 100, counting each field of a struct).
        index_path: the folder of the index (default: `.skipstone` in the table). It may be on another storage.
        storage_options: endpoint, region and credentials of an object store, with the names of deltalake, obstore or
            fsspec. By default they come from the environment and from roles. They stay in memory and are never shown.
        on_misfit: what happens to files of a directory whose columns or partition keys do not fit those of most files.
            "raise": SchemaError lists them, and no index is created. "quarantine": the table lacks them, and its
            queries warn of that; each `sync` tries them again.
        ignore_deletes: if Skipstone removed rows or files from the folder, and the index is missing, `create` raises
            InvalidArgumentError, because deleted rows would return. True: create the index; they return.
        progress: a function called as f(step, done, total or None), or True for a bar on stderr.
        attach: the function that reads the footers of a listing (`spark_adapter.create` lets executors read them).

    Raises:
        NotATableError: there is nothing to index. InvalidArgumentError: there is an index already.
        SchemaError: files or partition folders do not fit each other. CorruptionError: `files` names a file that is
            not Parquet. In a listing such a file is quarantined: queries warn of it, `verify` names it, and each `sync`
            tries it again.
    """
    if source is not None and source not in KINDS:
        raise InvalidArgumentError(f"source={source!r} is not known; it is one of {', '.join(KINDS)}")
    if on_misfit not in ("raise", "quarantine"):
        raise InvalidArgumentError(f'on_misfit= is "raise" or "quarantine", not {on_misfit!r}')
    if isinstance(columns, str):
        columns = [columns]
    _check_arguments(schema, partitioning, columns)
    report = progress_function(progress)
    table = locate(location, name=name, catalog=catalog, source=source, storage_options=storage_options)
    storage, index_storage = open_storages(table.path, index_path, table.storage_options)
    timeline = Timeline(index_storage)
    named = table.kind or (ICEBERG if table.metadata is not None else None)
    place = storage.kind()
    if place == "file":
        raise NotATableError(f"{storage.uri} is a file; index its directory, or name files with files=[...]")
    if timeline.latest() is not None:
        hint = "{open} opens it, {sync} adds new files"
        raise InvalidArgumentError(f"{storage.uri} is already indexed", hint=hint)
    if files is None and not ignore_deletes and (marker := read_marker(storage)) is not None:
        raise without_index(storage, marker)
    kind = source or named or (DIRECTORY if files is not None else detect_format(storage))
    if kind != DIRECTORY and (schema is not None or files is not None or partitioning != "hive"):
        raise InvalidArgumentError(
            f"{storage.uri}: the {kind} log defines files, schema and partitioning, so these cannot be passed"
        )
    if kind != DIRECTORY:
        from .commit.sync import first_version

        readers = RunReaders(index_storage)
        log = open_log(kind, storage, table.log_options, table.metadata)
        instant = first_version(log, storage, index_storage, timeline, readers, columns, report)
        return Table(new_handle(storage, index_storage, timeline, readers, instant, log=log))
    transaction = new_transaction_id()
    is_hive = partitioning is not None
    declared = pa.Table.from_batches([files]) if isinstance(files, pa.RecordBatch) else files
    is_declared = isinstance(declared, pa.Table)
    with with_index_folder(storage, index_storage) as root_ns, UnpublishedFiles() as leftovers:
        listed, start_ns, folders = empty_table(LISTED), time.time_ns(), set[str]()
        if not is_declared:
            listed = _listed(storage, index_storage, files, schema, report, folders, is_there=place is not None)
        reading = FooterReading(is_hive, columns, quarantines=files is None)
        results, quarantined = attach(
            AttachRequest(storage, index_storage, transaction, listed, leftovers, reading, report)
        )
        if schema is None and not results and not is_declared:
            raise CorruptionError(
                f"none of its {len(quarantined)} Parquet files can be read; the first: {quarantined[0]['reason']}",
                path=quarantined[0]["path"],
                check="parquet",
            )
        is_listing = files is None
        typical = results
        if is_listing and schema is None:  # most files say what the columns and keys are
            infers_keys = is_hive and not isinstance(partitioning, pa.Schema)
            typical = without(results, minority(results, infers_keys=infers_keys))
        texts = _declared_partitions(declared, storage, schema) if is_declared else _partitions_of(typical)
        base = _first_instant(
            transaction, schema, partitioning, typical, texts, is_hive, columns, recorded_name(storage)
        )
        if is_declared:
            results = [declared_files(declared, base.schema, base.partitioning, is_hive, storage)]
        if is_listing:
            odd = misfits(base, results, ())
            if odd:
                _check_odd(odd, sum(result.files.num_rows for result in results), on_misfit)
            quarantined = quarantined_of(quarantined, odd, results)
            results = without(results, odd, index_storage)
        readers = RunReaders(index_storage)
        batch = WriteBatch(transaction, base, WriteBuffer(index_storage), leftovers)
        handle = Handle(storage, index_storage, timeline, readers, base)
        times = folder_times(storage, folders, start_ns)
        if times and root_ns:
            times[""] = root_ns
        edit = Edit(results=results, quarantined=quarantined, source={"folders": times} if times else {})
        instant = commit(handle, "create", lambda *_: edit, batch=batch)
    return Table(new_handle(storage, index_storage, timeline, readers, instant))


def _check_odd(odd: Mapping[str, str], count: int, on_misfit: OnMisfit) -> None:
    """Raises SchemaError, which lists the files that do not fit, if none may be quarantined, or no more files fit than
    do not."""
    is_most = 2 * len(odd) >= count
    if on_misfit == "raise" or is_most:
        lines = [f"\n  {path}: {reason}" for path, reason in list(odd.items())[:_MISFITS_SHOWN]]
        if len(odd) > _MISFITS_SHOWN:
            lines.append(f"\n  and {len(odd) - _MISFITS_SHOWN:,} files more")
        message = f"{len(odd):,} of its {count:,} files do not fit the table, so no index is created{''.join(lines)}"
        hint = "rewrite or move them" if is_most else "rewrite or move them, or leave them out by {on_misfit}"
        raise SchemaError(message, hint=hint)


def _check_arguments(schema: object, partitioning: object, columns: object) -> None:
    """Raises InvalidArgumentError for arguments of types that mean nothing here."""
    if schema is not None and not isinstance(schema, pa.Schema):
        raise InvalidArgumentError(f"schema= is a pyarrow Schema, not {type(schema).__name__}")
    for name, names in (("partitioning", partitioning), ("columns", columns)):
        if names is None or isinstance(names, (str, pa.Schema)):
            continue
        if not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
            raise InvalidArgumentError(f"{name}= is a list of column names, not {names!r}")


def _listed(
    storage: Storage,
    index_storage: Storage,
    files: Sequence[str] | None,
    schema: pa.Schema | None,
    progress: Progress | None,
    folders: set[str],
    *,
    is_there: bool,
) -> pa.Table:
    """The files to attach, as `lakes.directory` lists them. Adds the listed folders to `folders`."""
    if files is not None:
        is_list = isinstance(files, Iterable) and not isinstance(files, (str, bytes))
        if not is_list or not all(isinstance(f, (str, os.PathLike)) for f in files):
            raise InvalidArgumentError("files= is a list of paths")
        paths = list(dict.fromkeys(relative_path(storage, f) for f in files))
        if not paths and schema is None:
            raise NotATableError("files= names no file", hint=_EMPTY)
        try:
            return listed_of(prefetched(storage.stat, paths, threads_for(storage, STAT_THREADS), "skipstone-stat"))
        except FileMissingError as error:
            raise NotATableError(str(error)) from error
    if not is_there and schema is None:
        raise NotATableError(f"{storage.uri}: no such directory", hint=_EMPTY)
    hidden = hidden_by_index(storage, index_storage)
    if hidden is not None:
        message = f"{storage.uri}: the index's folder contains {hidden}, which would not be listed"
        raise InvalidArgumentError(message, hint="pass another folder for the index as {index_path}")
    listed = list_parquet(storage, index_storage, progress, folders)
    if not listed.num_rows and schema is None:
        raise NotATableError(f"{storage.uri}: no Parquet files below it", hint=_EMPTY)
    return listed


def _declared_partitions(files: pa.Table, storage: Storage, schema: pa.Schema | None) -> list[str]:
    """The partitions of a table of files, as their paths name them."""
    if schema is None:
        raise InvalidArgumentError("files= is a table of files, which are not read: pass their columns as schema=")
    if not files.num_rows:
        raise NotATableError("files= names no file", hint="to create an empty table, pass only {schema}")
    return declared_partitions(files, storage).unique().to_pylist()


def _partitions_of(results: Sequence[TaskResult]) -> list[str]:
    return list(dict.fromkeys(t for r in results for t in r.files.column("partition").unique().to_pylist()))


def _first_instant(
    transaction: str,
    schema: pa.Schema | None,
    partitioning: str | Sequence[str] | pa.Schema | None,
    results: Sequence[TaskResult],
    texts: Sequence[str],
    is_hive: bool,
    columns: Sequence[str] | None,
    location: str,
) -> Instant:
    """Version 0: what the first commit is bound to."""
    is_inferred = schema is None
    if schema is None:
        examples = _examples(results)
        schema = unified(list(examples), list(examples.values()))
    fields = _partition_fields(schema, partitioning, texts, is_inferred)
    if not is_inferred:  # what was declared "not null" stays so: writers are held to it
        schema = pa.schema([pa.field(f.name, plain_type(f.type), f.nullable) for f in schema])
    schema = with_partition_columns(schema, [pa.field(f.name, plain_type(f.type), f.nullable) for f in fields])
    _check_columns(columns, schema)
    check_table_schema(schema, [f.name for f in fields])
    empty = identified(Instant.before_first(transaction, now_us(), uuid.uuid4().hex), schema, {})
    stats = [p for p in leaf_types(schema) if p not in {f.name for f in fields} and column_filter(columns)(p)]
    stats_ids = tuple(empty.columns[path] for path in (stats if columns is not None else stats[:COLUMNS_MAX]))
    source = {"kind": "directory", "version": None, "hive": is_hive, "locations": [location]}
    empty = replace(empty, source=source, partitioning=tuple(f.name for f in fields))
    return empty.with_new_index(IndexState.of_statistics(stats_ids))


def _examples(results: Sequence[TaskResult]) -> dict[pa.Schema, str]:
    """Each physical schema, in the order of files, with the path of the first file that has it."""
    examples: dict[pa.Schema, str] = {}
    for result in results:
        ids, paths = result.files.column("schema_id"), result.files.column("path")
        for number, schema in enumerate(result.schemas):
            if schema not in examples:
                examples[schema] = paths[pc.index(ids, scalar_of(number, ids.type)).as_py()].as_py()
    return examples


def _partition_fields(
    schema: pa.Schema, partitioning: str | Sequence[str] | pa.Schema | None, texts: Sequence[str], is_inferred: bool
) -> list[pa.Field]:
    if partitioning is None:
        return []
    if isinstance(partitioning, pa.Schema):
        return list(partitioning)
    if partitioning == "hive":
        inferred = hive.infer_types(texts) if texts else []
        # A schema that was given, and has the key, says its type.
        return [f if is_inferred or schema.get_field_index(f.name) < 0 else schema.field(f.name) for f in inferred]
    if isinstance(partitioning, str):
        partitioning = [partitioning]
    if is_inferred:  # an attached lake: the named keys, in the types that the paths show
        schema = pa.schema([*schema, *(f for f in hive.infer_types(texts) if schema.get_field_index(f.name) < 0)])
    if len(set(partitioning)) < len(partitioning):
        raise SchemaError(f"partitioning= names a column twice: {', '.join(partitioning)}")
    missing = [name for name in partitioning if field_index(schema, name) < 0]
    if missing:
        raise SchemaError(f"partition column {missing[0]!r} is not in the schema ({', '.join(schema.names)})")
    return [schema.field(name) for name in partitioning]


def _check_columns(columns: Sequence[str] | None, schema: pa.Schema) -> None:
    for name in columns or ():
        if field_index(schema, name.split(".")[0]) < 0 and field_index(schema, name) < 0:
            raise SchemaError(f"columns=: no column {name!r}; the columns are {', '.join(schema.names)}")
