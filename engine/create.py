"""Attaching to a lake, or beginning an empty table, as users call it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from .choices import OnMisfit, TableSource
from .creating import create_handle
from .progress import Progress
from .table import Table
from .tasks.attach import Attacher, attach_all


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
    """Indexes Parquet files in place, from their footers alone, or begins an empty table.

    Args:
        location: the table's directory, or its URI in an object store (s3://, gs://, az://); or a table object of
            deltalake (its log is indexed at its latest version) or pyiceberg. An Iceberg table may be given by its
            metadata file, where a catalog says which one counts (pyiceberg's `table.metadata_location`); by its
            directory, with source="iceberg", it is the newest; with `catalog`, by its name in that.
        schema: of an empty table; partition columns belong to it.
        partitioning: "hive" (keys and types from the paths), a pyarrow Schema that declares the keys' types, the names
            of an empty table's partition columns, or None.
        source: "directory", or "delta", "iceberg", "hudi": the live files of that table's own log, which then says what
            the columns and the partitions are. None looks for a log, here and in the folders above: a Delta or Hudi
            table is followed, one of Iceberg, and a folder below any, is refused; files that are named with `files` are
            taken as they are. "directory" insists on every Parquet file.
        files: exactly these; nothing is listed. A list of paths, whose footers are read; or an Arrow table as
            `Transaction.add_files` takes it (path, size_bytes, row_count, ...), with `schema` for what they hold:
            then nothing is looked at, and the files need not be readable.
        columns: which columns get statistics (default: all, to a limit).
        index_path: where our own files go (default: `.skipstone` in the table); it may be another kind of storage.
        storage_options: what opens an object store: endpoint, region, credentials, by the names that deltalake, obstore
            or fsspec have for them. Environment and roles serve without. Kept in memory alone, and never shown.
        on_misfit: what happens to files of a directory whose columns or partition keys do not fit those of most files.
            "raise": SchemaError lists them, and no index is created. "quarantine": the table lacks them, and its
            queries warn of that; each `sync` tries them again.
        ignore_deletes: a folder in which Skipstone removed rows or files, and whose index is missing, raises
            InvalidArgumentError, since its old files would count again. True: they count again.
        progress: a function called as f(step, done, total or None), or True for a bar on stderr.
        attach: who reads the footers of a listing (`spark_adapter.create` has executors do it).

    Raises:
        NotATableError: nothing there to index. InvalidArgumentError: a table is there already.
        SchemaError: files or partition folders that do not fit one another. CorruptionError: `files` names one that
            is not Parquet. In a listing, a file that is not (yet) Parquet is quarantined: queries warn of it, `verify`
            names it, and each `sync` tries it again.
    """
    return Table(
        create_handle(
            location,
            schema=schema,
            partitioning=partitioning,
            source=source,
            files=files,
            columns=columns,
            index_path=index_path,
            storage_options=storage_options,
            name=name,
            catalog=catalog,
            on_misfit=on_misfit,
            ignore_deletes=ignore_deletes,
            progress=progress,
            attach=attach,
        )
    )
