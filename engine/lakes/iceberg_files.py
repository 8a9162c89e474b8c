"""Metadata files and manifests of an Iceberg table, read through `pyiceberg`.

Only the caller's options decide what opens files. The properties of a table may name endpoints and, with `py-io-impl`,
any callable of any module; `pyiceberg.table.StaticTable.from_metadata` would follow them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import NotReadableError
from ..storage import Storage
from .table_format import missing_package

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table import StaticTable
    from pyiceberg.table.snapshots import Snapshot


def static_table(storage: Storage, path: str, options: Mapping[str, str]) -> StaticTable:
    """Open the table of a metadata file, whose path is relative to the storage's root or absolute."""
    try:
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.io import load_file_io
        from pyiceberg.serializers import FromInputFile
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise missing_package("pyiceberg", "iceberg") from error
    uri = path if os.path.isabs(path) or "://" in path else f"{storage.uri}/{path}"
    files = load_file_io(dict(options), location=uri)
    metadata = FromInputFile.table_metadata(files.new_input(uri))
    return StaticTable(("static-table", uri), metadata, uri, files, NoopCatalog("static-table"))


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
