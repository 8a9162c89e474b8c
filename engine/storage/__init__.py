"""Storage of files: one interface for the local disk and object stores.

interface.py        `Storage`: read ranges, put, put if absent, list, delete
local.py            the local disk
places.py           URIs and `storage_options`; object_client.py creates a client of them, object_store.py a storage
wrappers.py         storages around a storage: counted, buffered, recorded, and sent to another process
threads.py          work in threads, a bounded number ahead
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping

from ...base.arrays import is_utf8
from ...errors import InvalidArgumentError, StorageError
from .interface import Entry, FileMissingError, Ranged, RangeFile, Storage, UncertainPutError, UnreachableError
from .local import LocalStorage
from .places import StorageOptions, is_uri, local_path_of, place_of
from .wrappers import Counted, Usage, options_of, reading_of

__all__ = [
    "INDEX_FOLDER",
    "Counted",
    "Entry",
    "FileMissingError",
    "LocalStorage",
    "RangeFile",
    "Ranged",
    "Storage",
    "StorageOptions",
    "UncertainPutError",
    "UnreachableError",
    "Usage",
    "is_outside",
    "open_storage",
    "open_storages",
    "options_of",
    "reading_of",
    "relative_path",
]

INDEX_FOLDER = ".skipstone"


def open_storage(
    location: str | os.PathLike[str], options: Mapping[str, object] | None = None, *, is_index: bool = False
) -> Storage:
    """Return the storage at a location: a folder, a `file:` URI, or one of an object store (see `places`), opened with
    `options`. The storage of an index root (`is_index`) reads nothing outside of it. Raises StorageError for an unknown
    scheme."""
    if not isinstance(location, (str, os.PathLike)):
        raise InvalidArgumentError(f"a location is a path, not {location!r}")
    text = os.fspath(location)
    if "\0" in text or not is_utf8(text):
        raise InvalidArgumentError(f"{text!r}: a location is a text of UTF-8, without NUL")
    text = local_path_of(text)
    if is_uri(text):
        place = place_of(text)
        if place is None:
            scheme = text.partition("://")[0]
            raise StorageError(f"{scheme}:// is not known; a table is in a local folder, or at s3://, gs:// or az://")
        from .object_store import ObjectStorage

        options = options if isinstance(options, StorageOptions) else StorageOptions(options)
        return ObjectStorage(place, options, is_index=is_index)
    return LocalStorage(text, is_index=is_index)


def open_storages(
    location: str | os.PathLike[str], index_path: str | os.PathLike[str] | None, options: Mapping[str, object] | None
) -> tuple[Counted, Counted]:
    """Return the storages of a table and of its index, both opened with the same options. The index is in the table's
    folder unless `index_path` is given. Raises InvalidArgumentError for options if neither is an object store,
    StorageError if the index's folder is a file."""
    options = StorageOptions(options)
    data = open_storage(location, options)
    if index_path is None:
        index_path = f"{data.uri.rstrip('/')}/{INDEX_FOLDER}"
    elif not isinstance(index_path, (str, os.PathLike)):
        raise InvalidArgumentError(f"index_path= is a path, not {index_path!r}")
    index = open_storage(index_path, options, is_index=True)
    if recorded_name(index) == recorded_name(data):
        raise InvalidArgumentError(
            f"{index.uri} is the table's own folder", hint="pass another folder for the index as {index_path}"
        )
    if isinstance(index, LocalStorage) and index.kind() == "file":
        raise StorageError(
            f"{index.uri}: the index belongs here, and a file is in its place, or a link that leads to no folder",
            hint="move it away, or keep the index elsewhere with {index_path}",
        )
    if options and isinstance(data, LocalStorage) and isinstance(index, LocalStorage):
        raise InvalidArgumentError(f"storage_options are for object stores, and {data.uri} is a local folder")
    return Counted(data), Counted(index)


def recorded_name(storage: Storage) -> str:
    """Return the name under which a table records where it is: for a local folder, the path without links."""
    return storage.uri if is_uri(storage.uri) else os.path.realpath(storage.uri)


def relative_path(storage: Storage, path: str | os.PathLike) -> str:
    """Return a path as the manifest stores it: relative to the table if it is inside, else absolute."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InvalidArgumentError(f"{text!r} names no file")
    text = local_path_of(text)
    if is_uri(text):
        return _relative_uri(storage, text)
    if is_uri(storage.uri):
        if os.path.isabs(text):
            raise InvalidArgumentError(f"{text}: is no file of {storage.uri}; name it relative to that, or by its URI")
        path = posixpath.normpath(text)
        return _relative_uri(storage, f"{storage.uri}/{text}") if _leads_out(path) else path
    return _relative_local(storage.uri, text).replace(os.sep, "/")


def _relative_local(root: str, text: str) -> str:
    """Return the one name of a file, because a file with two names would be counted twice. A path that leaves the root
    and enters it again, by ".." or by a link, is named by its place in the root."""
    path = os.path.normpath(text)
    if not os.path.isabs(path):
        if not _leads_out(path):
            return path
        path = os.path.normpath(os.path.join(os.path.realpath(root), path))
    inside = os.path.relpath(path, root)
    if _leads_out(inside):
        folder, name = os.path.split(path)
        inside = os.path.relpath(os.path.join(os.path.realpath(folder), name), os.path.realpath(root))
    return path if _leads_out(inside) else inside


def _leads_out(path: str) -> bool:
    return path == ".." or path.startswith(f"..{os.sep}")


def _relative_uri(storage: Storage, uri: str) -> str:
    place, root = place_of(uri), place_of(storage.uri)
    if place is None or root is None or not place.is_beside(root):  # another bucket: its names are not normalized
        return uri
    inside = f"{root.key}/" if root.key else ""
    is_inside = place.key.startswith(inside) and place.key != root.key
    return place.key[len(inside) :] if is_inside else place.uri


def is_outside(path: str) -> bool:
    """Return True for a path, as the manifest stores it, of a file that is not in the table's folder."""
    return path.startswith("/") or is_uri(path)
