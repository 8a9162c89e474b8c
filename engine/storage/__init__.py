"""Where files lie: one interface, local disk behind it."""

from __future__ import annotations

import os

from ...errors import StorageError
from .counted import Counted
from .interface import Entry, FileMissingError, Ranged, Storage, walk
from .local import LocalStorage

__all__ = ["Counted", "Entry", "FileMissingError", "LocalStorage", "Ranged", "Storage", "open_storage", "walk"]


def open_storage(location: str | os.PathLike) -> LocalStorage:
    """The storage at a location: a folder, or a `file://` URI. Raises StorageError for a scheme that is not known."""
    text = os.fspath(location)
    if text.startswith("file://"):
        text = text[len("file://") :]
    elif "://" in text:
        raise StorageError(f"{text}: only local folders can be opened by this version")
    return LocalStorage(text)
