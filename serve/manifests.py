"""Manifests of a snapshot, for clients that plan themselves. They are written below the index root on table load.

Names contain a hash of the contents, and the list is written last: two servers that write one snapshot write the same,
and a server that is killed leaves no list. Manifests have no bounds: such clients prune only by partitions.
"""

from __future__ import annotations

import hashlib
import io

from pyiceberg.manifest import ManifestEntry, write_manifest, write_manifest_list

from ..engine.scan.planning import PlannedScan
from ..engine.scan.request import ScanRequest
from ..engine.state.paths import SERVED_FOLDER
from .plans import CheckedFiles, made_files
from .presented import IcebergView


def write_manifests(current: IcebergView, planned: IcebergView, checked: CheckedFiles) -> str:
    """Write the manifest of a snapshot and the list of manifests. Return the location of the list. Clients use the
    metadata of `current`. Raises NotReadableError for files that they would misread."""
    metadata, number, storage = current.parsed, planned.snapshot_id, planned.handle.index_storage
    scan = PlannedScan(ScanRequest.of(planned.handle))
    files = [file for file, _ in made_files(planned, current.mapping, scan, checked)]
    snapshot = None if number is None else metadata.snapshot_by_id(number)
    assert number is not None and snapshot is not None
    digest = hashlib.sha256(repr([(f.file_path, f.record_count, f.partition) for f in files]).encode()).hexdigest()
    name, manifests = f"{number}-{digest[:32]}", []
    if files:
        output = _Output(f"{planned.index_root}/{name}-0.avro")
        with write_manifest(2, metadata.spec(), metadata.schema(), output, number, "null") as writer:
            for file in files:
                writer.add(ManifestEntry.from_args(snapshot_id=number, data_file=file))
        manifests.append(writer.to_manifest_file())
        storage.put(f"{SERVED_FOLDER}/{name}-0.avro", output.data)
    listed = _Output(f"{planned.index_root}/{name}.avro")
    with write_manifest_list(2, listed, number, None, snapshot.sequence_number, "null") as lists:
        lists.add_manifests(manifests)
    storage.put(f"{SERVED_FOLDER}/{name}.avro", listed.data)
    return listed.location


class _Output(io.BytesIO):
    """A file in memory, as pyiceberg writes files."""

    def __init__(self, location: str):
        super().__init__()
        self.location, self.data = location, b""

    def create(self, overwrite: bool = False) -> _Output:
        return self

    def __len__(self) -> int:
        return len(self.data)

    def close(self) -> None:
        self.data = self.data or self.getvalue()
        super().close()
