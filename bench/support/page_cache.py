"""Files that the system holds in memory no more: what reads them next waits for the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def forget(folders: Iterable[Path]) -> None:
    """Drops the pages of every file below some folders from the system's cache. Pages that were never written to the
    disk stay, so each file is flushed before."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
