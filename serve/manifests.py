"""Manifests of a snapshot, for clients that plan for themselves: written below the index root when a table is loaded.

Names contain a hash of the contents, and the list of manifests is put last: two servers that write one snapshot write
the same, and a server that is killed leaves no list. Manifests contain paths, sizes, row counts and partition values,
and no bounds, so these clients prune by partitions alone.
"""

from __future__ import annotations

import hashlib
import io

from pyiceberg.manifest import ManifestEntry, write_manifest, write_manifest_list

from ..engine.scan.planning import PlannedScan
from ..engine.scan.request import ScanRequest
from ..errors import NotReadableError
from .plans import CheckedFiles, made_files
from .presented import FOLDER, Presented

_FILES_PER_MANIFEST = 10_000


def write_manifests(current: Presented, planned: Presented, checked: CheckedFiles) -> tuple[str, int]:
    """Write the manifests of a snapshot. Return where their list is, and how many files they name. `current`: the table
    at its newest version, by whose metadata clients read.

    Raises NotReadableError for files that clients would misread, and for deleted rows.
    """
    metadata, number = current.parsed, planned.snapshot_id
    files = []
    for file, deletes in made_files(planned, current.mapping, PlannedScan(ScanRequest.of(planned.handle)), checked):
        if deletes:
            raise NotReadableError("rows of its files are deleted, which needs a client with server-side planning")
        files.append(file)
    snapshot = None if number is None else metadata.snapshot_by_id(number)
    assert number is not None and snapshot is not None
    digest = hashlib.sha256(repr([(f.file_path, f.record_count, f.partition) for f in files]).encode()).hexdigest()[:32]
    root, storage, manifests = planned.index_root, planned.handle.index_storage, []
    for first in range(0, len(files), _FILES_PER_MANIFEST):
        output = _Output(f"{root}/{number}-{digest}-{first // _FILES_PER_MANIFEST}.avro")
        with write_manifest(2, metadata.spec(), metadata.schema(), output, number, "null") as writer:
            for file in files[first : first + _FILES_PER_MANIFEST]:
                writer.add(ManifestEntry.from_args(snapshot_id=number, data_file=file))
        manifests.append(writer.to_manifest_file())
        storage.put(f"{FOLDER}/{output.location.rpartition('/')[2]}", output.data)
    listed = _Output(f"{root}/{number}-{digest}.avro")
    with write_manifest_list(2, listed, number, None, snapshot.sequence_number, "null") as lists:
        lists.add_manifests(manifests)
    storage.put(f"{FOLDER}/{number}-{digest}.avro", listed.data)
    return listed.location, len(files)


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
        if not self.closed:
            self.data = self.getvalue()
        super().close()
