"""Where files lie: one interface, local disk behind it."""

from __future__ import annotations

import os

from ...errors import InvalidArgumentError, StorageError
from .counted import Counted
from .interface import Entry, FileMissingError, Ranged, Storage
from .local import LocalStorage

__all__ = [
    "Counted",
    "Entry",
    "FileMissingError",
    "LocalStorage",
    "Ranged",
    "Storage",
    "open_storage",
    "relative_path",
]


def open_storage(location: str | os.PathLike) -> LocalStorage:
    """The storage at a location: a folder, or a `file://` URI. Raises StorageError for a scheme that is not known."""
    if not isinstance(location, (str, os.PathLike)):
        raise InvalidArgumentError(f"a location is a path, not {location!r}")
    text = os.fspath(location)
    if "\0" in text:
        raise InvalidArgumentError(f"a path holds no NUL: {text!r}")
    if text.startswith("file://"):
        text = text[len("file://") :]
    elif "://" in text:
        raise StorageError(f"{text}: only local folders can be opened by this version")
    return LocalStorage(text)


def relative_path(storage: Storage, path: str | os.PathLike) -> str:
    """A path as the manifest has it: relative to the table where it lies in it, else absolute."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InvalidArgumentError(f"{text!r} names no file")
    text = text[len("file://") :] if text.startswith("file://") else text
    if "://" in text:  # another storage's: its name is not ours to tidy
        return text
    if os.path.isabs(text):
        inside = os.path.relpath(os.path.normpath(text), storage.uri)
        return os.path.normpath(text) if inside.startswith("..") else inside.replace(os.sep, "/")
    return os.path.normpath(text).replace(os.sep, "/")
