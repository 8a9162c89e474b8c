"""Opening a table, as users call it."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .opening import open_handle
from .table import Table

if TYPE_CHECKING:
    import polars as pl


def open_table(
    location: str | os.PathLike,
    *,
    version: int | None = None,
    as_of: dt.datetime | None = None,
    savepoint: str | None = None,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    strict: bool = False,
    cache: str | None = None,
    pickle_credentials: bool = False,
) -> Table:
    """Opens a table at its latest version, or at another.

    Args:
        location: the table's directory, or its URI in an object store (s3://, gs://, az://); or an Iceberg table's
            metadata file.
        version, as_of, savepoint: at most one of them: a version number, the latest version at a time (naive means
            UTC), or the version that a savepoint names. A version whose time lies in the future of the storage's
            clock counts from the time of its file; a warning says so.
        index_path: where the index lies, if not in the table.
        storage_options: what opens an object store, as `create` has it.
        strict: a damaged index run raises CorruptionError, and so does a file that a sync would set aside (SchemaError
            where it does not fit); otherwise they are left out, the run with a warning. A newest version that is known
            to be lost raises, too; otherwise a warning says so, and the newest that can be read is opened.
        cache: "coarse" keeps the coarse groups of filters in memory from the first question on, as far as the process's
            cache has room for them (`skipstone.set_cache_budget`): a value then costs no request. Without it nothing
            of them is kept.

        pickle_credentials: `storage_options` travel with pickles of the table and of its plans. Otherwise, and what
            came from the environment in any case, they do not: another process opens an object store by its own.

    Raises:
        NotATableError: no index there, or no such version. InvalidArgumentError: no such savepoint.
    """
    return Table(
        open_handle(
            location,
            version=version,
            as_of=as_of,
            savepoint=savepoint,
            index_path=index_path,
            storage_options=storage_options,
            strict=strict,
            cache=cache,
            pickle_credentials=pickle_credentials,
        )
    )


def scan_polars(location: str | os.PathLike, **options: Any) -> pl.LazyFrame:
    """A table as a polars LazyFrame, see `Table.lazy`; `options` are those of `open`."""
    return open_table(location, **options).lazy()


def open_pair(
    location: str | os.PathLike,
    version: int | None,
    log_position: str | None,
    index_path: str | os.PathLike | None,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """A version together with the state of its log that another handle saw (`Handle.log_position`), None for none."""
    table = open_table(location, version=version, index_path=index_path, storage_options=storage_options)
    if log_position is not None:
        table.handle.pin_log(log_position)
    return table
