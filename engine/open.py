"""Opening a table: which storage, which timeline, which version."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping

from ..errors import InvalidArgumentError, NotATableError
from .ingest.sources import is_log, open_source, split_location
from .manifest.runs import RunReaders
from .storage import open_storages
from .table import Table
from .timeline import Instant, Timeline


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
            UTC), or the version that a savepoint names.
        index_path: where the index lies, if not in the table.
        storage_options: what opens an object store, as `create` has it.
        strict: a damaged index run raises CorruptionError; otherwise it is left out, with a warning.
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
    if as_of is not None:
        instant = _as_of(timeline, instant, as_of)
    if version is not None or as_of is not None:
        timeline.check_readable(instant)
    if savepoint is not None:
        instant = timeline.read(instant.version_of_savepoint(savepoint))
    is_pinned = version is not None or as_of is not None or savepoint is not None
    log = open_source(instant.source["kind"], storage, storage_options, named) if is_log(instant.source) else None
    readers = RunReaders(index_storage, keeps_groups=cache == "coarse")
    return Table(storage, index_storage, timeline, readers, instant, is_pinned, strict, log)


def open_pair(
    location: str | os.PathLike,
    version: int | None,
    log_position: str | None,
    index_path: str | os.PathLike | None,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """A version together with the state of its log that another handle saw (`Table.log_position`), None for none."""
    table = open_table(location, version=version, index_path=index_path, storage_options=storage_options)
    if log_position is not None:
        table.pin_log(log_position)
    return table


def _as_of(timeline: Timeline, latest: Instant, as_of: dt.datetime) -> Instant:
    if as_of.tzinfo is None:
        as_of = as_of.replace(tzinfo=dt.UTC)
    wanted = round((as_of - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(microseconds=1))
    low, high = 1, latest.version  # times never go back, so versions can be halved
    if timeline.read(1).time_us > wanted:
        raise NotATableError(f"{timeline.storage.uri}: the table began after {as_of.isoformat()}")
    while low < high:
        middle = (low + high + 1) // 2
        if timeline.read(middle).time_us <= wanted:
            low = middle
        else:
            high = middle - 1
    return timeline.read(low)
