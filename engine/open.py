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
    """Opens a table at its latest version, or at another.

    Args:
        location: the table's directory, or its URI in an object store (s3://, gs://, az://); an Iceberg table's
            metadata file; a table object of deltalake or pyiceberg; or, with `catalog`, a name in an Iceberg catalog. A
            DeltaTable that is not at the latest version of its log is opened at its own, for reading.
        version, as_of, savepoint, log_version: at most one of them: a version number, the latest version at a time
            (naive means UTC), or the version that a savepoint names. A version whose time lies in the future of the
            storage's clock counts from the time of its file; a warning says so. `log_version` is a number of the log's
            own, a Delta version, an Iceberg snapshot id or a Hudi instant (its digits, as a text too): the version that
            is of it, or where there is none the log is read at it, and files that no version near it knows may
            match.
        source: "directory", "delta", "iceberg" or "hudi": raises InvalidArgumentError where the table is indexed as
            another.
        catalog, name: pyiceberg's name of a catalog, or the catalog itself, which says at each `refresh` which metadata
            file counts; `name` is the table's name in it, where it is not the location.
        index_path: where the index lies, if not in the table.
        storage_options: what opens an object store, as `create` has it. By default those of a table object.
        strict: a damaged index run raises CorruptionError, and so does a file that a sync would quarantine (SchemaError
            if it does not fit); a query of a version that has quarantined files raises NotReadableError. By default
            runs and files are left out, with a warning. A newest version that is known
            to be lost raises, too; otherwise a warning says so, and the newest that can be read is opened.
        cache: "coarse" keeps the coarse groups of filters in memory from the first question on, as far as the process's
            cache has room for them (`skipstone.set_cache_budget`): a value then costs no request. Without it nothing
            of them is kept.

        pickle_credentials: `storage_options` travel with pickles of the table and of its plans. Otherwise, and what
            came from the environment in any case, they do not: another process opens an object store by its own.
        scan_log: a local file that gets a line of JSON for each plan of this handle: what was asked, and what was
            skipped. A `ScanLog` says more about it, as that it keeps no values. Default: the file that the variable
            SKIPSTONE_SCAN_LOG names, if any. It does not travel with pickles.
        on_stale: what a query does if the directory changed since the last sync. "warn": warn once per change, and
            answer from the version. "sync": sync first. "raise": raise NotReadableError. "ignore": do not look. By
            default "warn" in a directory on a local disk, where looking costs microseconds per folder. On object
            stores and network disks looking is a listing, so it happens only if `on_stale` is given. A file that is
            overwritten in place is noticed if a query reads it, or answers from its metadata. Tables that follow a
            log are never stale.
        fallback: "list": where there is no index, its newest version cannot be read, or the table was copied or moved
            and not adopted, the directory is listed and
            the files' footers are read, into a temporary index that goes with the handle; a warning says so. Such a
            table is for reading.

    Raises:
        NotATableError: no index there, no such version, or the log has `log_version` no more. NotReadableError: the
        table was copied or moved, and not adopted (`skipstone.adopt`). InvalidArgumentError: no such savepoint, or
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


open_table = open  # for modules that open files, too


def _listed(location: str | os.PathLike[str], storage_options: Mapping[str, str] | None, why: Exception) -> Table:
    """A table without an index of its own: over a temporary one, of the files that are there now."""
    import tempfile

    from .create import create

    folder = tempfile.TemporaryDirectory(prefix="skipstone-", ignore_cleanup_errors=True)
    try:
        table = create(location, index_path=folder.name, storage_options=storage_options, on_misfit="quarantine")
    except BaseException:
        folder.cleanup()
        raise
    # Plans outlive their table: the index goes with the last that reads runs.
    weakref.finalize(table.handle.readers, _discard, folder, table.handle.index_storage.uri)
    table.handle.is_pinned = True
    files = table.handle.instant.totals["files"]
    reason = why.bare_message if isinstance(why, SkipstoneError) else why
    message = (
        f"{table.location}: no index could be read ({reason}): {files:,} files were listed, and their footers read"
    )
    hint = "{create} makes an index"
    warnings.warn(SkipstoneWarning(message, hint=hint), stacklevel=3)
    return table


def _discard(folder: tempfile.TemporaryDirectory, uri: str) -> None:
    process_cache().forget(lambda run: run[0] == uri)
    folder.cleanup()


def scan_polars(location: str | os.PathLike[str], **options: Any) -> pl.LazyFrame:
    """A table as a polars LazyFrame, see `Table.lazy`; `options` are those of `open`."""
    return open_table(location, **options).lazy()


def open_pair(
    location: str | os.PathLike[str],
    version: int | None,
    log_position: str | None,
    index_path: str | os.PathLike[str] | None,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """A version together with the state of its log that another handle saw (`Handle.log_position`), None for none."""
    table = open_table(location, version=version, index_path=index_path, storage_options=storage_options)
    if log_position is not None:
        table.handle.pin_log(log_position)
    return table
