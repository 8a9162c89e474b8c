"""What users name a table by: its directory, an Iceberg metadata file, a table object of deltalake or pyiceberg, or a
name in an Iceberg catalog. Neither library is imported unless one of its tables is given, or a catalog is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidArgumentError
from ..storage.places import local_path_of
from . import DELTA, ICEBERG, METADATA_ENDING

# The options that mean the same to pyiceberg's file systems and to our storages.
_PYICEBERG_NAMES = {
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
    "adls.account-name": "account_name",
    "adls.account-key": "account_key",
    "adls.sas-token": "sas_token",
}


@dataclass(frozen=True)
class Location:
    """Where a table lies, and what the caller says of its log.

    path             the table's directory, or its URI
    kind             "delta" or "iceberg", where what was given says so
    metadata         an Iceberg metadata file, relative to `path`, or a function that asks the catalog which one counts;
                     None: the newest in the directory
    log_version      the version of a Delta table object
    storage_options  what opens the object store
    log_options      the same, by the names that the log's library has
    """

    path: str | os.PathLike[str]
    kind: str | None = None
    metadata: str | Callable[[], str] | None = None
    log_version: int | None = None
    storage_options: Mapping[str, Any] | None = None
    log_options: Mapping[str, Any] | None = None


def located(
    place: Any,
    *,
    name: str | None = None,
    catalog: Any = None,
    source: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Location:
    """What a user gave as a table. Options that are given go before those of the table object or the catalog.

    Raises InvalidArgumentError for what names no table, NotATableError for a name that the catalog does not have,
    StorageError where the catalog cannot be read.
    """
    if name is not None or catalog is not None:
        if (place is None) == (name is None):
            raise InvalidArgumentError("a table of a catalog has one name: give it as the location, or as name=")
        if source not in (None, ICEBERG):
            raise InvalidArgumentError(f"catalog= and name= are for Iceberg tables, not for source={source!r}")
        from .iceberg_catalog import load_table

        return _of_iceberg(load_table(place if name is None else name, catalog), storage_options)
    package = type(place).__module__.partition(".")[0]
    if package == "deltalake" and hasattr(place, "table_uri"):
        _check_source(source, DELTA)
        return _of_delta(place, storage_options)
    if package == "pyiceberg" and hasattr(place, "metadata_location"):
        _check_source(source, ICEBERG)
        return _of_iceberg(place, storage_options)
    if place is None:
        raise InvalidArgumentError("no table is named: give its directory, a table object, or name= and catalog=")
    path, metadata = split_location(place) if source != "directory" else (place, None)
    return Location(path, None, metadata, None, storage_options, storage_options)


def split_location(location: str | os.PathLike) -> tuple[str | os.PathLike[str], str | None]:
    """(the table's directory, the metadata file that is named in its place, relative to it): an Iceberg table may be
    given as TABLE/metadata/00003-x.metadata.json, where a catalog knows which of them counts."""
    text = os.fspath(location) if isinstance(location, (str, os.PathLike)) else ""
    if not text.endswith(METADATA_ENDING) or text.count("/") < 2:
        return location, None
    table, folder, name = text.rsplit("/", 2)
    return table, f"{folder}/{name}"


def pyiceberg_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of ours, and the same by the names that pyiceberg has for them."""
    same = {name: options[ours] for name, ours in _PYICEBERG_NAMES.items() if ours in options}
    return {**same, **options}


def _check_source(source: str | None, kind: str) -> None:
    if source not in (None, kind):
        raise InvalidArgumentError(f"source={source!r} does not go with a {kind.capitalize()} table object")


def _of_delta(table: Any, storage_options: Mapping[str, Any] | None) -> Location:
    uri = str(table.table_uri)
    path = local_path_of(uri)
    options = storage_options if storage_options is not None else getattr(table, "_storage_options", None)
    if "://" not in path:  # deltalake takes options for local folders, too; we have no use for them
        options = storage_options
    return Location(path.rstrip("/") or "/", DELTA, None, int(table.version()), options, options)


def _of_iceberg(table: Any, storage_options: Mapping[str, Any] | None) -> Location:
    from .iceberg_catalog import newest_metadata

    path = _plain(str(table.location())).rstrip("/")
    properties = dict(table.io.properties)
    options = storage_options
    if options is None and "://" in path:
        options = {ours: properties[name] for name, ours in _PYICEBERG_NAMES.items() if properties.get(name)}
    newest = newest_metadata(table)
    return Location(
        path, ICEBERG, lambda: _below(path, newest()), None, options, {**properties, **(storage_options or {})}
    )


def _plain(uri: str) -> str:
    """A URI, or the path where it names a local file."""
    return "/" + uri[len("file:") :].lstrip("/") if uri.startswith("file:") else uri


def _below(path: str, metadata: str) -> str:
    """A metadata file relative to the table's directory, where it lies in that."""
    return _plain(metadata).removeprefix(f"{path}/")
