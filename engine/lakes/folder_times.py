"""When the folders of a directory were last modified, on a local disk.

A file that is created, renamed or removed changes its folder's modification time. So a folder with the time that it had
when it was listed contains the same files. A file that is overwritten in place does not change it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterable, Iterator

from ..storage import Storage

UNKNOWN = 0
FOLDERS_MAX = 4096  # of more, no times are recorded: each version would carry them
_TICK_NS = 20_000_000  # times of files have at least this resolution on disks that count nanoseconds
_COARSE_NS = 2_000_000_000  # some disks have times of two seconds
_REMOTE_DISKS = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "lustre", "gluster", "gpfs", "beegfs", "afs", "ncp")


def is_watched(storage: Storage) -> bool:
    """Whether looking at a folder's time costs microseconds: a directory on a disk of this machine."""
    return "://" not in storage.uri and not _is_network_disk(os.path.abspath(storage.uri))


def folder_times(storage: Storage, folders: Iterable[str], listed_ns: int) -> dict[str, int]:
    """Return the time (ns since 1970) of each folder that has not changed since `listed_ns`, when a listing began;
    UNKNOWN for the others. Empty for more than FOLDERS_MAX folders, for names that are not UTF-8, and for directories
    that are not watched."""
    paths = sorted(folders)
    is_utf8 = all(not any("\ud800" <= c <= "\udfff" for c in path) for path in paths)  # a version is JSON
    if len(paths) > FOLDERS_MAX or not is_utf8 or not is_watched(storage):
        return {}
    times = {path: modified_ns(storage, path) or UNKNOWN for path in paths}
    return {path: now if now < listed_ns - _COARSE_NS else UNKNOWN for path, now in times.items()}


@contextlib.contextmanager
def with_index_folder(storage: Storage, index_storage: Storage) -> Iterator[int]:
    """Make the index's folder before the directory is listed: it changes the root's time, and would hide from every
    handle that nothing else did. Yields the root's time, UNKNOWN if it is not certain. Removes the folder after an
    error if it is empty."""
    root, folder = storage.uri, index_storage.uri
    if not is_watched(storage) or os.path.dirname(folder) != root or os.path.exists(folder):
        yield UNKNOWN
        return
    before = modified_ns(storage, "")
    try:
        if before is None or before > time.time_ns() - _COARSE_NS:
            yield UNKNOWN
            return
        with contextlib.suppress(OSError):  # where nothing may be written, the commit says so
            os.mkdir(folder)
        made = modified_ns(storage, "") or UNKNOWN
        is_coarse = made % 1_000_000_000 == 0
        while not is_coarse and time.time_ns() < made + _TICK_NS:  # later changes have another time
            time.sleep(_TICK_NS / 1e9)
        yield UNKNOWN if is_coarse else made
    except BaseException:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        raise


def modified_ns(storage: Storage, folder: str) -> int | None:
    """Return a folder's modification time, None if it is missing."""
    try:
        return os.stat(f"{storage.uri}/{folder}").st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return the folders of files, and all folders above them; "" is the root."""
    folders = {path.rpartition("/")[0] for path in paths}
    for folder in list(folders):
        while folder:
            folder = folder.rpartition("/")[0]
            folders.add(folder)
    return folders | {""}


@functools.lru_cache(maxsize=256)
def _is_network_disk(path: str) -> bool:
    if not sys.platform.startswith("linux"):
        return path.startswith("\\\\")
    best, kind = "", ""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                _, point, disk, *_ = line.split(" ")
                point = point.replace("\\040", " ")
                if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
                    best, kind = point, disk
    except OSError:
        return False
    return kind.startswith(_REMOTE_DISKS)
