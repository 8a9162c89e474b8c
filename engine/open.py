"""Opening a table: which storage, which timeline, which version."""

from __future__ import annotations

import datetime as dt
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, NotATableError
from .handle import Handle
from .lakes.log import is_log, split_location
from .lakes.sources import open_source
from .state import Instant, Timeline
from .state.runs import RunReaders
from .storage import open_storages
from .table import Table, with_log_tail

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

    Raises:
        NotATableError: no index there, or no such version. InvalidArgumentError: no such savepoint.
    """
    if sum(given is not None for given in (version, as_of, savepoint)) > 1:
        raise InvalidArgumentError("give version=, as_of= or savepoint=, not both")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise InvalidArgumentError(f"version= is a whole number, not {version!r}")
    if as_of is not None and not isinstance(as_of, dt.datetime):
        raise InvalidArgumentError(f"as_of= is a datetime, not {as_of!r}")
    if cache not in (None, "coarse"):
        raise InvalidArgumentError(f'cache= is "coarse", or nothing, not {cache!r}')
    location, named = split_location(location)
    storage, index_storage = open_storages(location, index_path, storage_options)
    timeline = Timeline(index_storage)
    if version is not None:
        instant: Instant | None = timeline.read(version)
    else:
        instant = timeline.latest()
    if instant is None:
        kind = storage.kind()
        if kind == "file":
            raise NotATableError(f"{storage.uri} is a file, not a table's directory")
        hint = "" if kind else " (and no such directory)"
        raise NotATableError(
            f"{storage.uri}: no Skipstone index here{hint}; make one with create(), or say where it is with index_path="
        )
    if version is None:
        timeline.check_whole(instant, strict)
    if as_of is not None:
        instant = _as_of(timeline, instant, as_of)
    if version is not None or as_of is not None:
        timeline.check_readable(instant)
    if savepoint is not None:
        instant = timeline.read(instant.version_of_savepoint(savepoint))
    is_pinned = version is not None or as_of is not None or savepoint is not None
    log = open_source(instant.source["kind"], storage, storage_options, named) if is_log(instant.source) else None
    readers = RunReaders(index_storage, keeps_groups=cache == "coarse")
    return Table(Handle(storage, index_storage, timeline, readers, instant, is_pinned, strict, log, with_log_tail))


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


def _as_of(timeline: Timeline, latest: Instant, as_of: dt.datetime) -> Instant:
    if as_of.tzinfo is None:
        as_of = as_of.replace(tzinfo=dt.UTC)
    wanted = round((as_of - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(microseconds=1))
    found, is_doubted = timeline.last_until(latest, wanted)
    told = "some versions say times in the future of their files', by which they are dated instead: a clock was wrong"
    if found is None:
        doubt = f" ({told})" if is_doubted else ""
        raise NotATableError(f"{timeline.storage.uri}: the table began after {as_of.isoformat()}{doubt}")
    if is_doubted:
        warnings.warn(f"{timeline.storage.uri}: {told}", stacklevel=3)
    return found
