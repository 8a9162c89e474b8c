"""What Skipstone asks of a place where files lie: seven calls, and nothing is ever changed in place.

Paths are relative to the storage's root, with "/" between names, no leading slash. Every call raises `StorageError`
when the place refuses; a path that is not there is `FileMissingError`, so that a probe can tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from ...errors import StorageError


class FileMissingError(StorageError, FileNotFoundError):
    """No file of that name."""


@dataclass(frozen=True)
class Entry:
    """One file of a listing. `modified_ns` is nanoseconds since 1970 UTC; `etag` is None where the place has none."""

    path: str
    size_bytes: int
    modified_ns: int
    etag: str | None = None

    def is_same(self, size_bytes: int, modified_ns: int | None, etag: str | None = None) -> bool:
        """True where this is the file of that identity; what is not known of either is not compared."""
        return (
            self.size_bytes == size_bytes
            and modified_ns in (None, self.modified_ns)
            and (etag is None or self.etag in (None, etag))
        )


class Storage(Protocol):
    """A local folder or a prefix of an object store."""

    uri: str

    def stat(self, path: str) -> Entry:
        """One file's size and identity."""
        ...

    def read(self, path: str) -> bytes:
        """A whole small file."""
        ...

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, length), in the order asked; short only where the file ends."""
        ...

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file to write: durable under its name at the end of the block, or, on an exception, absent."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Publishes `data` whole under a name that nobody has; False where somebody has it. Durable on return, also
        what somebody else put there: he may have died before it was."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Publishes `data` whole, over whatever was there. For hints only: nothing that must be right relies on it."""
        ...

    def list_folder(self, path: str) -> tuple[list[Entry], list[str]]:
        """The files of one folder and the names of its sub-folders, unsorted; both empty where it does not exist."""
        ...

    def delete(self, path: str) -> None:
        """Removes a file; no error where it is gone already."""
        ...


class Ranged:
    """One file of a storage as the sorted-block reader wants it: `size`, `read_ranges`, `name`."""

    def __init__(self, storage: Storage, path: str, size: int | None = None):
        self.storage, self.path, self.name = storage, path, f"{storage.uri}/{path}"
        self.size = storage.stat(path).size_bytes if size is None else size

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self.storage.read_ranges(self.path, ranges)
