"""The files of a plan as a file system of Arrow's, so that a pyarrow Dataset reads them through our storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as fs

from ...errors import StorageError
from ..storage import Counted, Entry


def filesystem_of(storage: Counted, entries: Sequence[Entry]) -> fs.FileSystem:
    """The local disk, where the storage is one; else a file system that has these files, by their paths in the
    manifest, for reading. A file that was overwritten meanwhile raises NotReadableError when it is read."""
    if all(isinstance(storage.open_file(entry), str) for entry in entries[:1]):
        return fs.LocalFileSystem()
    return fs.PyFileSystem(_Handler(storage, entries))


class _Handler(fs.FileSystemHandler):
    """Opens and looks at the files of one plan; lists nothing, and writes nothing."""

    def __init__(self, storage: Counted, entries: Sequence[Entry]):
        self._storage = storage
        self._entries = {entry.path: entry for entry in entries}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and (self._storage, self._entries) == (other._storage, other._entries)

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "skipstone"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(self._storage.open_file(self._entries[path]), mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def _info(self, path: str) -> fs.FileInfo:
        entry = self._entries.get(path)
        if entry is None:
            return fs.FileInfo(path, fs.FileType.NotFound)
        return fs.FileInfo(path, fs.FileType.File, size=entry.size_bytes)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StorageError(f"{self._storage.uri}: the files of a plan are for reading; nothing is listed or written")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
