"""The files of a Delta log, looked at before `deltalake` reads them: a table may come from a stranger, and at some
files it waits for ever, or ends the process.

What lies on a local disk must be regular files of a size that a log may have; of the checkpoint that a version is read
from, the footers are parsed, as those of data files are.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat

import numpy as np

from ...errors import NotReadableError
from ..parquet.footers import open_parquet
from ..storage import FileMissingError, Storage
from ..storage.places import is_uri
from ..storage.threads import side_by_side

FOLDER = "_delta_log"
_SIDECARS = f"{FOLDER}/_sidecars"
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:[^/]*\.)?parquet\Z", re.ASCII)
_COMMIT = re.compile(r"/(\d{20})\.json\Z", re.ASCII)
_DEPTH_MAX = 5_000  # unclosed brackets; at some ten thousand deltalake's stack ends
FILE_BYTES_MAX = 4 << 30


def check_log(storage: Storage, version: int | None) -> None:
    """Raises NotReadableError, or CorruptionError, for a log that deltalake must not read at a version; None is the
    latest."""
    if not is_uri(storage.uri):
        for folder in ("", FOLDER, _SIDECARS):  # deletion vectors lie beside the data
            _check_folder(os.path.join(storage.uri, folder))
    files, _ = storage.list_folder(FOLDER)
    named = [(int(match[1]), f) for f in files if (match := _CHECKPOINT.search(f.path))]
    newest = max((number for number, _ in named if version is None or number <= version), default=None)
    parts = [entry for number, entry in named if number == newest]
    if any(entry.path.count(".") > 2 for entry in parts):  # a checkpoint in parts, or of the second kind
        parts += [entry for entry in storage.list_folder(_SIDECARS)[0] if entry.path.endswith(".parquet")]
    for entry in parts:
        open_parquet(storage, entry, is_checked=False).close()
    commits = [(int(match[1]), f.path) for f in files if (match := _COMMIT.search(f.path))]
    first, last = -1 if newest is None else newest, version
    read = [path for number, path in commits if first < number and (last is None or number <= last)]
    checks = side_by_side(storage, lambda path: _is_too_deep(storage, path), read, "skipstone-log")
    for path, too_deep in zip(read, checks, strict=True):
        if too_deep:
            raise NotReadableError(f"{storage.uri}: its Delta log holds JSON that is nested too deep, in {path}")


def _is_too_deep(storage: Storage, path: str) -> bool:
    """Whether a commit is nested deeper than any writer's, within strings of JSON as well."""
    try:
        data = storage.read(path, FILE_BYTES_MAX)
    except FileMissingError:  # it expired meanwhile
        return False
    text = np.frombuffer(data, np.uint8) & 0xDF  # { becomes [ and } becomes ]
    depth = np.cumsum((text == ord("[")).astype(np.int8) - (text == ord("]")).astype(np.int8), dtype=np.int64)
    return bool(len(depth)) and int(depth.max()) > _DEPTH_MAX


def _check_folder(folder: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".parquet") and entry.is_file():
                continue
            with contextlib.suppress(OSError):  # a link that leads nowhere
                status = entry.stat()
                if stat.S_ISREG(status.st_mode) and status.st_size > FILE_BYTES_MAX:
                    raise NotReadableError(
                        f"{entry.path}: {status.st_size:,} bytes, more than a Delta log's file may have"
                    )
                if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                    raise NotReadableError(f"{entry.path}: is no regular file, but a FIFO, a socket or a device")
