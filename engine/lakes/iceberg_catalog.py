"""Catalogs, metadata files and manifests of Iceberg tables, through pyiceberg, and the options that Skipstone shares.

Only the caller's options decide what opens files. The properties of a table may name endpoints and, by `py-io-impl`,
any callable of any module; `pyiceberg.table.StaticTable.from_metadata` would follow them.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError, NotATableError, NotReadableError, SkipstoneError, StorageError
from ..storage import Storage
from .table_format import local_path, missing_package

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table import StaticTable
    from pyiceberg.table.snapshots import Snapshot

# Options that mean the same to pyiceberg's file systems and to Skipstone's storages.
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


class CatalogTable:
    """A table that a user opened through its catalog. A call returns its newest metadata file, within the table."""

    def __init__(self, table: Any, path: str):
        """`table`: pyiceberg's. `path`: the table's directory."""
        self._table, self._path = table, path
        self._is_first = True

    def __call__(self) -> str:
        """Return the metadata file of the table object at the first call, and the catalog's newest at later calls."""
        is_first, self._is_first = self._is_first, False
        return self.metadata_of(self._table if is_first or not self.has_catalog else self.load())

    @property
    def has_catalog(self) -> bool:
        return type(self._table.catalog).__name__ != "NoopCatalog"

    def load(self) -> Any:
        """Load the table again. Raises as `detect.locate`."""
        return _from_catalog(lambda: self._table.catalog.load_table(self._table.name()), self._table.name())

    def metadata_of(self, table: Any) -> str:
        """Return the metadata file of one state of this table."""
        return local_path(str(table.metadata_location)).removeprefix(f"{self._path}/")


def load_table(name: Any, catalog: Any) -> Any:
    """Load a table by name. `catalog`: a pyiceberg catalog, its name, or None for the default.

    Raises as `detect.locate`.
    """
    if not isinstance(name, (str, tuple)):
        raise InvalidArgumentError(f"the name of a table in a catalog is a string, not {name!r}")
    if catalog is None or isinstance(catalog, str):
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise missing_package("pyiceberg", "iceberg") from error
        label = catalog
        catalog = _from_catalog(lambda: load_catalog(label), name)
    elif not hasattr(catalog, "load_table"):
        raise InvalidArgumentError(f"catalog= is the name of a catalog or a pyiceberg catalog, not {catalog!r}")
    return _from_catalog(lambda: catalog.load_table(name), name)


def _from_catalog(request: Callable[[], Any], name: Any) -> Any:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return request()
    except SkipstoneError:
        raise
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise NotATableError(f"{name}: the catalog has no such table") from error
    except ValueError as error:
        raise InvalidArgumentError(f"{name}: the catalog is not configured ({str(error).splitlines()[0]})") from error
    except Exception as error:  # catalogs raise the errors of their clients
        kind = type(error).__name__  # its text may contain credentials
        raise StorageError(f"{name}: the catalog cannot be read ({kind})") from None


def pyiceberg_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return Skipstone's options, and the same options by pyiceberg's names."""
    same = {name: options[ours] for name, ours in _PYICEBERG_NAMES.items() if ours in options}
    return {**same, **options}


def our_options(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of Skipstone's storages among the properties of a pyiceberg FileIO."""
    return {ours: properties[name] for name, ours in _PYICEBERG_NAMES.items() if properties.get(name)}


# -- metadata files and manifests --------------------------------------------------------------------------------------


def static_table(storage: Storage, path: str, options: Mapping[str, str]) -> StaticTable:
    """Open the table of a metadata file, whose path is relative to the storage's root or absolute."""
    try:
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.io import load_file_io
        from pyiceberg.table import StaticTable
        from pyiceberg.table.metadata import TableMetadataUtil
    except ImportError as error:
        raise missing_package("pyiceberg", "iceberg") from error
    uri = path if os.path.isabs(path) or "://" in path else f"{storage.uri}/{path}"
    files = load_file_io(dict(options), location=uri)
    metadata = TableMetadataUtil.parse_raw(metadata_text(files, uri).decode())
    return StaticTable(("static-table", uri), metadata, uri, files, NoopCatalog("static-table"))


def metadata_text(files: FileIO, uri: str) -> bytes:
    """Return the JSON of a metadata file, which may be compressed, whatever its name."""
    with files.new_input(uri).open() as file:
        data = file.read()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def manifests_of(files: FileIO, snapshot: Snapshot) -> list[ManifestFile]:
    """Return the manifests of a snapshot. (`Snapshot.manifests` caches by path, across tables.)"""
    from pyiceberg.manifest import read_manifest_list

    return list(read_manifest_list(files.new_input(snapshot.manifest_list)))


def live_entries(files: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """Return the live entries of a manifest. Raises NotReadableError if there are fewer than the manifest list counts:
    `pyiceberg` reads an Avro file that was cut between two blocks without an error."""
    entries = manifest.fetch_manifest_entry(files, discard_deleted=True)
    counts = manifest.added_files_count, manifest.existing_files_count
    if None not in counts and len(entries) < sum(count for count in counts if count is not None):
        raise NotReadableError(
            f"{manifest.manifest_path}: {len(entries)} live files, where the list of manifests says {sum(counts)}; the "
            "manifest is damaged"
        )
    return entries
