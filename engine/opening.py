"""Opening a handle on a table: its storages, timeline and version, in this process or again in another one."""

from __future__ import annotations

import datetime as dt
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, NotATableError, NotReadableError, is_integer
from .handle import Handle
from .lakes import DELTA, HUDI, is_log
from .lakes.detect import locate, open_log
from .state import Instant, Run, Timeline
from .state.runs import RUNS_AHEAD_MAX, RunReaders
from .state.snapshot import Snapshot
from .storage import Counted, Storage, open_storages, recorded_name

if TYPE_CHECKING:
    from .choices import OnStale
    from .lakes.table_format import LogState


_LOOK_BACK_MAX = 1000  # versions that are read to find the one of an Iceberg snapshot, because its ids have no order


def open_handle(
    location: Any,
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
    cache: str | None = None,
    pickle_credentials: bool = False,
    at_any_place: bool = False,
) -> Handle:
    """Open a handle: see `open.open_table`. `at_any_place`: also on a table that was copied or moved."""
    log_version = _checked_log_version(log_version)
    pins = {"version": version, "as_of": as_of, "savepoint": savepoint, "log_version": log_version}
    _check_pins(pins)
    if cache not in (None, "coarse"):
        raise InvalidArgumentError(f'cache= is "coarse", or nothing, not {cache!r}')
    table = locate(location, name=name, catalog=catalog, source=source, storage_options=storage_options)
    storage, index_storage = open_storages(table.path, index_path, table.storage_options)
    timeline = Timeline(index_storage)
    readers = RunReaders(index_storage, keeps_groups=cache == "coarse")
    latest = timeline.latest(prefetch=lambda hinted: readers.open_ahead(_runs(hinted))) if version is None else None
    instant = latest if version is None else timeline.read(version)
    if instant is None:
        raise _no_index(storage)
    indexed = instant.source["kind"]
    for wanted in (source, table.kind):
        if wanted is not None and wanted != indexed:
            raise InvalidArgumentError(f"{storage.uri}: is indexed as {indexed!r}, not as {wanted!r}")
    if version is None:
        timeline.check_whole(instant, strict)
    if as_of is not None:
        instant = _as_of(timeline, instant, as_of)
    if version is not None or as_of is not None:
        timeline.check_readable(instant)
    if savepoint is not None:
        instant = timeline.read(instant.version_of_savepoint(savepoint))
    if not at_any_place:
        check_place(timeline, instant, storage)
    log = None
    if is_log(instant.source):
        log = open_log(indexed, storage, table.log_options, table.metadata)

    def handle_on(instant: Instant, is_pinned: bool) -> Handle:
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

    is_pinned = any(pin is not None for pin in pins.values())
    if log_version is None:
        handle = handle_on(instant, is_pinned)
        if is_pinned or table.log_version is None or table.log_version >= _log_version(handle):
            return handle
        log_version = table.log_version
    if log is None:
        raise InvalidArgumentError(
            f"{storage.uri}: log_version= is for a table that follows a Delta, Iceberg or Hudi log"
        )
    latest = instant
    nearest = _nearest_to(log_version, timeline, latest)
    handle = handle_on(nearest, True)
    # A Hudi instant means everything that is completed up to it, which may have become more. An Iceberg snapshot has
    # the columns of its own schema; a version of it may have later ones, because a change of columns makes no snapshot.
    if indexed != DELTA or not _is_version_of(nearest, log_version, latest):
        handle.pin_log(log.position_of(log_version))
    return handle


def _checked_log_version(given: int | str | None) -> int | None:
    if isinstance(given, str) and given.isascii() and given.isdecimal():
        return int(given)
    if given is not None and not is_integer(given):
        raise InvalidArgumentError(f"log_version= is a whole number, not {given!r}")
    return given


def _check_pins(pins: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError if more than one pin is set, or one has a wrong type."""
    if sum(pin is not None for pin in pins.values()) > 1:
        raise InvalidArgumentError("pass only one of version=, as_of=, savepoint= and log_version=")
    version, as_of = pins["version"], pins["as_of"]
    if version is not None and not is_integer(version):
        raise InvalidArgumentError(f"version= is a whole number, not {version!r}")
    if as_of is not None and not isinstance(as_of, dt.datetime):
        raise InvalidArgumentError(f"as_of= is a datetime, not {as_of!r}")


def _no_index(storage: Storage) -> NotATableError:
    kind = storage.kind()
    if kind == "file":
        return NotATableError(f"{storage.uri} is a file, not a table's directory")
    why = "" if kind else " (and no such directory)"
    return NotATableError(
        f"{storage.uri}: no Skipstone index here{why}",
        hint="create one with {create}, or pass its folder as {index_path}",
    )


def check_place(timeline: Timeline, instant: Instant, storage: Storage) -> None:
    """Raise NotReadableError if a version's files were recorded only at other places: a copy has other times."""
    recorded = instant.source.get("locations")
    here = recorded_name(storage)
    if recorded is None or here in recorded:
        return
    latest = timeline.latest() or instant
    adopted = latest.source.get("locations", [])
    if here not in adopted:
        was = f"the files of its index were recorded at {recorded[0]}" if recorded else "its adoption is not complete"
        raise NotReadableError(
            f"{storage.uri}: this table was copied or moved; {was}",
            hint="{adopt} compares the files here with the recorded ones, and keeps the index",
        )
    if not set(recorded) & set(adopted):
        raise NotReadableError(
            f"{storage.uri}: version {instant.version} is older than the copy that was adopted here, so its files "
            f"cannot be compared; the latest version, {latest.version}, can be read"
        )


def _runs(instant: Instant) -> list[Run]:
    """Return the runs that a first query is likely to need: not those of an index in many shards."""
    few = [index.runs for index in instant.indexes if len(index.runs) <= RUNS_AHEAD_MAX]
    return [*instant.manifest, *(run for runs in few for run in runs)]


def _log_version(handle: Handle) -> int:
    """Return the log's own number of the state that a handle reads; -1 if it has none."""
    tail = handle.snapshot.tail
    number = handle.instant.source["version"] if tail is None else tail.version
    return -1 if number is None else number


def _is_version_of(instant: Instant, log_version: int, latest: Instant) -> bool:
    """Return whether a version was created from that state of the log that the latest version follows."""
    return instant.source["version"] == log_version and instant.source["table"] == latest.source["table"]


def _nearest_to(log_version: int, timeline: Timeline, latest: Instant) -> Instant:
    """Return the newest version of a state of the log; else one that is likely to share many files with it."""
    if latest.source["kind"] in (DELTA, HUDI):
        candidate, _ = timeline.last_until(latest, log_version, lambda instant: instant.source["version"] or 0)
    else:
        numbers = range(latest.version, max(0, latest.version - _LOOK_BACK_MAX), -1)
        existing = (instant for number in numbers if (instant := timeline.find(number)) is not None)
        candidate = next((instant for instant in existing if _is_version_of(instant, log_version, latest)), None)
    if candidate is None or candidate.source["kind"] != latest.source["kind"]:
        return latest
    try:
        latest.check_kept(candidate.version)
    except NotATableError:
        return latest
    return candidate


def opened_again(
    location: str,
    table_id: str,
    version: int,
    log_position: str | None,
    index_path: str,
    storage_options: Mapping[str, str] | None,
    strict: bool,
    cache: str | None,
    is_pinned: bool,
    on_stale: OnStale | None,
) -> Handle:
    """Return a handle as it was in the process that pickled it, on both of its versions. Without options an object
    store is opened with the environment of this process. Raises NotATableError if the table was created again since."""
    handle = open_handle(
        location,
        version=version,
        index_path=index_path,
        storage_options=storage_options,
        strict=strict,
        cache=cache,
        pickle_credentials=storage_options is not None,
    )
    if handle.instant.table_id != table_id:
        raise NotATableError(f"{location}: the table was removed and created again since this was pickled")
    handle.is_pinned, handle.on_stale = is_pinned, on_stale
    if handle.log is not None and log_position not in (None, handle.log_position):  # the log may have expired
        handle.pin_log(log_position)
    return handle


def with_log_tail(instant: Instant, readers: RunReaders, storage: Storage, state: LogState) -> Snapshot:
    """Return a version with the later changes of the log of another format, as a `Handle` with a log requests."""
    from .commit.follow_log import with_tail

    return with_tail(instant, readers, storage, state)


def new_handle(
    storage: Counted, index_storage: Counted, timeline: Timeline, readers: RunReaders, instant: Instant, **how: Any
) -> Handle:
    """Return a `Handle` that can follow a log, and be pickled; the environment may select a log of its plans."""
    handle = Handle(
        storage,
        index_storage,
        timeline,
        readers,
        instant,
        with_log_tail=with_log_tail,
        reopen=opened_again,
        **how,
    )
    if os.environ.get("SKIPSTONE_SCAN_LOG"):
        from .scan_log import scan_log_of_environment

        handle.scan_log = scan_log_of_environment()
    return handle


def _as_of(timeline: Timeline, latest: Instant, as_of: dt.datetime) -> Instant:
    if as_of.tzinfo is None:
        as_of = as_of.replace(tzinfo=dt.UTC)
    wanted = round((as_of - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(microseconds=1))
    instant, is_doubted = timeline.last_until(latest, wanted)
    message = "some versions have times after those of their files, which count instead: a clock was wrong"
    if instant is None:
        doubt = f" ({message})" if is_doubted else ""
        raise NotATableError(f"{timeline.storage.uri}: the table began after {as_of.isoformat()}{doubt}")
    if is_doubted:
        warnings.warn(f"{timeline.storage.uri}: {message}", stacklevel=3)
    return instant
