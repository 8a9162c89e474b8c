"""Opening a table, as users call it."""

from __future__ import annotations

import datetime as dt
import os
import warnings
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import (
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
    NotATableError,
    NotReadableError,
    SkipstoneError,
    SkipstoneWarning,
)
from .opening import open_handle
from .stale import checked_on_stale
from .state.cache import process_cache
from .table import Table

if TYPE_CHECKING:
    import tempfile

    import polars as pl

    from .choices import CacheLevel, Fallback, OnStale
    from .scan_log import ScanLog


def open(
    location: Any = None,
    *,
    version: int | None = None,
    as_of: dt.datetime | None = None,
    savepoint: str | None = None,
    log_version: int | str | None = None,
    source: str | None = None,
    name: str | None = None,
    catalog: Any = None,
    index_path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    strict: bool = False,
    cache: CacheLevel | None = None,
    pickle_credentials: bool = False,
    fallback: Fallback | None = None,
    scan_log: str | os.PathLike[str] | ScanLog | None = None,
    on_stale: OnStale | None = None,
) -> Table:
    """Open a table at its latest version, or at another.

    Args:
        location: the table's directory, or its URI in an object store (s3://, gs://, az://); an Iceberg table's
            metadata file; a table object of deltalake or pyiceberg; or, with `catalog`, a name in an Iceberg catalog. A
            DeltaTable that is not at the latest version of its log is opened at its version, read-only.
        version, as_of, savepoint, log_version: at most one of them: a version number, the latest version at a time
            (naive means UTC), or the name of a savepoint. A version whose time is in the future of the storage's clock
            counts from the time of its file, with a warning. `log_version` is a Delta version, an Iceberg snapshot id
            or a Hudi instant (its digits, also as a text). If no version has this state of the log, the log is read at
            it, and files that no version near it covers may match.
        source: "directory", "delta", "iceberg" or "hudi": raises InvalidArgumentError if the table is indexed as
            another.
        catalog, name: pyiceberg's name of a catalog, or the catalog object, which determines the current metadata file
            at each `refresh`; `name` is the table's name in it, if it is not the location.
        index_path: the folder of the index, if it is not in the table.
        storage_options: options of an object store, as for `create`. By default those of a table object.
        strict: a damaged index run raises CorruptionError, and so does a file that a sync would quarantine (SchemaError
            if it does not fit); a query of a version that has quarantined files raises NotReadableError. By default
            runs and files are left out, with a warning. If the newest version is known to be lost, a strict `open`
            raises; otherwise it warns and opens the newest version that can be read.
        cache: "coarse" keeps the coarse groups of filters in memory after their first use, within the budget of the
            process (`skipstone.set_cache_budget`), so a look-up of a value needs no request. By default they are not
            kept.
        pickle_credentials: pickles of the table and of its plans contain `storage_options`. By default they do not, and
            they never contain what was read from the environment: another process opens an object store with its own.
        scan_log: a local file that gets a line of JSON for each plan of this handle: the query, and what it skipped. A
            `ScanLog` has more options, for example to leave out values. Default: the file in the variable
            SKIPSTONE_SCAN_LOG, if any. Pickles do not contain it.
        on_stale: what a query does if the directory changed since the last sync. "warn": warn once per change, and
            answer from the version. "sync": sync first. "raise": raise NotReadableError. "ignore": do not look. By
            default "warn" in a directory on a local disk, where looking costs microseconds per folder. On object
            stores and network disks looking is a listing, so it happens only if `on_stale` is given. A file that is
            overwritten in place is noticed if a query reads it, or answers from its metadata. Tables that follow a
            log are never stale.
        fallback: "list": if there is no index, its newest version cannot be read, or the table was copied or moved and
            not adopted, list the directory and read the footers into a temporary index, with a warning. The table is
            read-only. A folder from which Skipstone removed rows or files raises InvalidArgumentError.

    Raises:
        NotATableError: there is no index, no such version, or the log no longer has `log_version`. NotReadableError:
        the table was copied or moved, and not adopted (`skipstone.adopt`). InvalidArgumentError: no such savepoint, or
        `log_version` of a table that follows no log. StorageError: `scan_log` cannot be written.
    """
    if fallback not in (None, "list"):
        raise InvalidArgumentError(f'fallback= is "list", or nothing, not {fallback!r}')
    log = None
    if scan_log is not None:
        from .scan_log import scan_log_of

        log = scan_log_of(scan_log)
    try:
        table = Table(
            open_handle(
                location,
                version=version,
                as_of=as_of,
                savepoint=savepoint,
                log_version=log_version,
                source=source,
                name=name,
                catalog=catalog,
                index_path=index_path,
                storage_options=storage_options,
                strict=strict,
                cache=cache,
                pickle_credentials=pickle_credentials,
            )
        )
    except (NotATableError, NotReadableError, CorruptionError, FormatVersionError) as error:
        pins = (version, as_of, savepoint, log_version, catalog, name)
        if fallback is None or any(pin is not None for pin in pins):
            raise
        table = _listed(location, storage_options, error)
    if log is not None:
        table.handle.scan_log = log
    table.handle.on_stale = checked_on_stale(on_stale)
    return table


open_table = open  # for modules that also open files


def _listed(location: str | os.PathLike[str], storage_options: Mapping[str, str] | None, why: Exception) -> Table:
    """A table over a temporary index of the files that the directory contains now."""
    import tempfile

    from .create import create

    folder = tempfile.TemporaryDirectory(prefix="skipstone-", ignore_cleanup_errors=True)
    try:
        table = create(location, index_path=folder.name, storage_options=storage_options, on_misfit="quarantine")
    except BaseException:
        folder.cleanup()
        raise
    # Plans outlive their table: the index is removed with the last object that reads its runs.
    weakref.finalize(table.handle.readers, _discard, folder, table.handle.index_storage.uri)
    table.handle.is_pinned = True
    files = table.handle.instant.totals["files"]
    reason = why.bare_message if isinstance(why, SkipstoneError) else why
    message = f"{table.location}: no index could be read ({reason}), so the footers of {files:,} files were read"
    hint = "{create} creates an index"
    warnings.warn(SkipstoneWarning(message, hint=hint), stacklevel=3)
    return table


def _discard(folder: tempfile.TemporaryDirectory, uri: str) -> None:
    process_cache().forget(lambda run: run[0] == uri)
    folder.cleanup()


def scan_polars(location: str | os.PathLike[str], **options: Any) -> pl.LazyFrame:
    """Open a table as a polars LazyFrame (see `Table.lazy`). `options` are those of `open`."""
    return open_table(location, **options).lazy()


def open_pair(
    location: str | os.PathLike[str],
    version: int | None,
    log_position: str | None,
    index_path: str | os.PathLike[str] | None,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """Open a version with the state of its log that another handle read (`Handle.log_position`; None: no log)."""
    table = open_table(location, version=version, index_path=index_path, storage_options=storage_options)
    if log_position is not None:
        table.handle.pin_log(log_position)
    return table
