"""Find the table that a user names, and its format.

A table is named by its directory, an Iceberg metadata file, a table object of deltalake or pyiceberg, or a name in an
Iceberg catalog. A library is imported only if one of its tables is given or a catalog is read.

A format is detected by the folder that its log creates: `_delta_log`, `.hoodie`, or `metadata` for Iceberg. A listing
of such a directory contains files that its log has removed, so `create` checks the directory and the folders above it
(a partition folder is part of its table) before it lists. Each folder costs three short requests, all sent at the same
time; nothing above a bucket is requested.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from ...errors import InvalidArgumentError, NotATableError, SkipstoneError, StorageError
from ..storage import Storage, open_storage
from ..storage.places import is_uri, local_path_of, place_of
from ..storage.threads import STAT_THREADS, prefetched
from . import DELTA, DIRECTORY, HUDI, ICEBERG, KINDS, METADATA_ENDING

if TYPE_CHECKING:
    from .table_format import LogSource

# The folder of each format's log, and how a name in it ends. A table in two formats is followed as Delta.
_LOG_FOLDERS = {
    DELTA: ("_delta_log", (".json", ".parquet", "_last_checkpoint")),
    HUDI: (".hoodie", ("",)),
    ICEBERG: ("metadata", (METADATA_ENDING, "version-hint.text")),
}


# -- which table ------------------------------------------------------------------------------------------------------


class Location(NamedTuple):
    """A table as the user named it.

    path             the table's directory, or its URI
    kind             "delta" or "iceberg", if the name implies it
    metadata         the Iceberg metadata file, relative to `path`, or a function that loads it from a catalog;
                     None: the newest in the directory
    log_version      the version of a Delta table object
    storage_options  options that open the object store
    log_options      the same options, under the names of the log's library
    """

    path: str | os.PathLike[str]
    kind: str | None = None
    metadata: str | Callable[[], str] | None = None
    log_version: int | None = None
    storage_options: Mapping[str, Any] | None = None
    log_options: Mapping[str, Any] | None = None


def locate(
    table: Any,
    *,
    name: str | None = None,
    catalog: Any = None,
    source: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Location:
    """Return the location of a table. `storage_options` override those of a table object or a catalog.

    Raises InvalidArgumentError if the arguments name no table, NotATableError if the catalog lacks the name,
    StorageError if the catalog cannot be read.
    """
    if name is not None or catalog is not None:
        if (table is None) == (name is None):
            raise InvalidArgumentError("a table of a catalog has one name: pass it as the location, or as name=")
        if source not in (None, ICEBERG):
            raise InvalidArgumentError(f"catalog= and name= are for Iceberg tables, not for source={source!r}")
        from .iceberg_catalog import load_table

        return _of_iceberg(load_table(table if name is None else name, catalog), storage_options)
    package = type(table).__module__.partition(".")[0]
    for kind, library, attribute, location_of in _TABLE_OBJECTS:
        if package == library and hasattr(table, attribute):
            if source not in (None, kind):
                raise InvalidArgumentError(f"source={source!r} does not match a {kind.capitalize()} table object")
            return location_of(table, storage_options)
    if table is None:
        raise InvalidArgumentError("no table is named: pass its directory, a table object, or name= and catalog=")
    path, metadata = (table, None) if source == DIRECTORY else _split_metadata(table)
    return Location(path, None, metadata, None, storage_options, storage_options)


def _split_metadata(location: str | os.PathLike) -> tuple[str | os.PathLike[str], str | None]:
    """Split TABLE/metadata/00003-x.metadata.json into the table's directory and the relative metadata file."""
    text = os.fspath(location) if isinstance(location, (str, os.PathLike)) else ""
    if not text.endswith(METADATA_ENDING) or text.count("/") < 2:
        return location, None
    table, folder, name = text.rsplit("/", 2)
    return table, f"{folder}/{name}"


def _of_delta(table: Any, storage_options: Mapping[str, Any] | None) -> Location:
    path = local_path_of(str(table.table_uri))
    options = storage_options if storage_options is not None else getattr(table, "_storage_options", None)
    if is_uri(path):
        path = unquote(path)
    else:  # deltalake accepts options for local folders; our local storage has none
        options = storage_options
    return Location(path.rstrip("/") or "/", DELTA, None, int(table.version()), options, options)


def _of_iceberg(table: Any, storage_options: Mapping[str, Any] | None) -> Location:
    from .iceberg_catalog import CatalogTable, our_options
    from .table_format import local_path

    path = local_path(str(table.location())).rstrip("/")
    properties = dict(table.io.properties)
    options = storage_options
    if options is None and "://" in path:
        options = our_options(properties)
    metadata = CatalogTable(table, path)
    return Location(path, ICEBERG, metadata, None, options, {**properties, **(storage_options or {})})


# Table objects: the format, and the library and an attribute by which one is recognized.
_TABLE_OBJECTS = (
    (DELTA, "deltalake", "table_uri", _of_delta),
    (ICEBERG, "pyiceberg", "metadata_location", _of_iceberg),
)


# -- which format -----------------------------------------------------------------------------------------------------


class Log(NamedTuple):
    """A log: its format, and the directory of its table."""

    kind: str
    root: str


def detect_format(storage: Storage) -> str:
    """Return the format that `create` follows by default: "delta", "hudi", or "directory" if there is no log.

    Raises NotATableError for an Iceberg table, whose metadata file must be named, and for a folder inside a table.
    """
    log = _nearest_log(storage)
    if log is None:
        return DIRECTORY
    insist = 'source="directory" indexes every Parquet file below, removed ones too'
    if log.root != storage.uri:
        raise NotATableError(
            f"{storage.uri} is inside the {log.kind.capitalize()} table, whose log decides which files are live: index "
            f"the table at {log.root}; {insist}"
        )
    if log.kind == ICEBERG:
        raise NotATableError(
            f"{storage.uri} is an Iceberg table, and the newest metadata file may belong to a commit that failed: pass "
            "the metadata file that its catalog names (pyiceberg's table.metadata_location), or "
            f'source="iceberg" if there is no catalog and the newest file counts; {insist}'
        )
    return log.kind


def _nearest_log(storage: Storage) -> Log | None:
    roots = [storage.uri, *_folders_above(storage.uri)]
    try:
        outer = open_storage(roots[-1], storage.options)
    except SkipstoneError:
        roots, outer = roots[:1], storage
    candidates = [Log(kind, root) for root in roots for kind in _LOG_FOLDERS]

    def exists(log: Log) -> bool:
        folder, endings = _LOG_FOLDERS[log.kind]
        try:
            if log.root == storage.uri:
                names = storage.peek(folder)
            else:
                names = outer.peek(posixpath.join(log.root[len(outer.uri) :].strip("/"), folder))
        except StorageError:
            if log.root == storage.uri:
                raise
            return False  # folders above the table may be forbidden
        return any(name.endswith(endings) for name in names)

    found = prefetched(exists, candidates, STAT_THREADS, "skipstone-detect")
    return next((log for log, is_there in zip(candidates, found, strict=True) if is_there), None)


def _folders_above(uri: str) -> list[str]:
    """Return the folders above one, the nearest first, up to the root of the disk or the bucket."""
    folders = []
    place = place_of(uri)
    if place is not None:
        while place.key:
            place = place._replace(key=posixpath.dirname(place.key))
            folders.append(place.uri)
        return folders
    path = os.path.realpath(uri)
    while (above := os.path.dirname(path)) != path:
        path = above
        folders.append(path)
    return folders


def open_log(
    kind: str,
    storage: Storage,
    options: Mapping[str, str] | None = None,
    metadata: str | Callable[[], str] | None = None,
) -> LogSource:
    """Open the log of a table. `metadata`: see `Location`. Raises InvalidArgumentError for an unknown kind."""
    if kind == DELTA:
        from .delta import DeltaSource

        return DeltaSource(storage, options)
    if kind == ICEBERG:
        from .iceberg import IcebergSource

        return IcebergSource(storage, options, metadata)
    if kind == HUDI:
        from .hudi.source import HudiSource

        return HudiSource(storage, options)
    raise InvalidArgumentError(f"source={kind!r} is unknown; it is one of {', '.join(KINDS)}")
