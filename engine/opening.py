"""A handle on a table: which storage, which timeline, which version; in this process, or in another again."""

from __future__ import annotations

import datetime as dt
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, NotATableError, is_integer
from .handle import Handle
from .lakes.log import is_log, split_location
from .state import Instant, Timeline
from .state.runs import RunReaders
from .state.snapshot import Snapshot
from .storage import Counted, Storage, open_storages

if TYPE_CHECKING:
    from .lakes.log import LogState


def open_handle(
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
) -> Handle:
    """See `open.open_table`."""
    if sum(given is not None for given in (version, as_of, savepoint)) > 1:
        raise InvalidArgumentError("give version=, as_of= or savepoint=, not both")
    if version is not None and not is_integer(version):
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
    log = None
    if is_log(instant.source):
        from .lakes.sources import open_source

        log = open_source(instant.source["kind"], storage, storage_options, named)
    readers = RunReaders(index_storage, keeps_groups=cache == "coarse")
    return new_handle(
        storage,
        index_storage,
        timeline,
        readers,
        instant,
        is_pinned=is_pinned,
        strict=strict,
        log=log,
        pickle_credentials=pickle_credentials,
    )


def opened_again(
    location: str,
    version: int,
    log_position: str | None,
    index_path: str,
    storage_options: Mapping[str, str] | None,
    strict: bool,
    cache: str | None,
    is_pinned: bool,
) -> Handle:
    """A handle as it was in the process that pickled it, on both of its versions; without its options an object store
    is opened by what this process's environment says."""
    handle = open_handle(
        location,
        version=version,
        index_path=index_path,
        storage_options=storage_options,
        strict=strict,
        cache=cache,
        pickle_credentials=storage_options is not None,
    )
    handle.is_pinned = is_pinned
    if handle.log is not None and log_position is not None:
        handle.pin_log(log_position)
    return handle


def with_log_tail(instant: Instant, readers: RunReaders, storage: Storage, state: LogState) -> Snapshot:
    """A version with what the log of another format has gone on by since: what a `Handle` with a log asks for."""
    from .commit.follow_log import with_tail

    return with_tail(instant, readers, storage, state)


def new_handle(
    storage: Counted, index_storage: Counted, timeline: Timeline, readers: RunReaders, instant: Instant, **how: Any
) -> Handle:
    """A `Handle` that can follow a log, and be pickled."""
    return Handle(
        storage, index_storage, timeline, readers, instant, with_log_tail=with_log_tail, reopen=opened_again, **how
    )


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
