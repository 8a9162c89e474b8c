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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import NotReadableError
from ..parquet.footers import open_parquet
from ..storage import Entry, FileMissingError, Storage
from ..storage.places import is_uri
from ..storage.threads import side_by_side

FOLDER = "_delta_log"
SIDECARS = f"{FOLDER}/_sidecars"
_CHECKPOINT = re.compile(r"/(\d{20})\.checkpoint\.(?:([^/]*)\.)?(parquet|json)\Z", re.ASCII)
_PART = re.compile(r"\d{10}\.(\d{10})\Z", re.ASCII)
_COMMIT = re.compile(r"/(\d{20})\.json\Z", re.ASCII)
_DEPTH_MAX = 5_000  # unclosed brackets; at some ten thousand deltalake's stack ends
FILE_BYTES_MAX = 4 << 30


@dataclass(frozen=True)
class LogSegment:
    """What a version of a log is read from.

    version     of the last commit
    has_all     no commit after the checkpoint is missing
    checkpoint  the newest whole one's files, without its sidecars; none where there is none
    commits     (path, those of its lines that may name a deletion vector) of each commit after it
    """

    version: int
    has_all: bool
    checkpoint: list[Entry]
    commits: list[tuple[str, list[bytes]]]


def checked_segment(storage: Storage, version: int | None) -> LogSegment:
    """What a version is read from; None is the latest. Raises NotReadableError, or CorruptionError, for a log that
    deltalake must not read at it."""
    if not is_uri(storage.uri):
        for folder in (FOLDER, SIDECARS):
            _check_folder(os.path.join(storage.uri, folder))
    files, _ = storage.list_folder(FOLDER)
    checkpoints = _checkpoints(files, version)
    newest = next((number for number, parts in checkpoints.items() if parts.whole is not None), -1)
    near = [entry for number, parts in checkpoints.items() if number >= newest for entry in parts.all]
    if any(entry.path.count(".") > 2 for entry in near):  # a checkpoint in parts, or of the second kind
        near += storage.list_folder(SIDECARS)[0]
    for entry in near:
        if entry.path.endswith(".parquet"):
            open_parquet(storage, entry, is_checked=False).close()
    commits = sorted((int(match[1]), f.path) for f in files if (match := _COMMIT.search(f.path)))
    read = [(number, path) for number, path in commits if newest < number and (version is None or number <= version)]
    lines = side_by_side(
        storage, lambda path: _vector_lines(storage, path), [path for _, path in read], "skipstone-log"
    )
    last = read[-1][0] if read else newest
    whole = checkpoints[newest].whole if newest >= 0 else None
    return LogSegment(
        last,
        last - newest == len(read),
        whole or [],
        [(path, each) for (_, path), each in zip(read, lines, strict=True)],
    )


@dataclass
class _Checkpoint:
    """The files of the checkpoints of one version, and those that form one which is whole, if any do."""

    all: list[Entry]
    whole: list[Entry] | None


def _checkpoints(files: Sequence[Entry], version: int | None) -> dict[int, _Checkpoint]:
    """By version, the newest first; none after `version`."""
    by_version: dict[int, dict[str, list[Entry]]] = {}
    for entry in files:
        match = _CHECKPOINT.search(entry.path)
        if match is not None and (version is None or int(match[1]) <= version):
            part = _PART.match(match[2] or "")
            kind = entry.path if part is None else part[1]
            by_version.setdefault(int(match[1]), {}).setdefault(kind, []).append(entry)
    checkpoints = {}
    for number, kinds in sorted(by_version.items(), reverse=True):
        whole = (parts for kind, parts in kinds.items() if not kind.isdigit() or len(parts) == int(kind))
        checkpoints[number] = _Checkpoint([e for parts in kinds.values() for e in parts], next(whole, None))
    return checkpoints


def _vector_lines(storage: Storage, path: str) -> list[bytes]:
    """The lines of a commit that may name a deletion vector. Raises NotReadableError for one that is nested deeper than
    any writer's, within strings of JSON as well."""
    try:
        data = storage.read(path, FILE_BYTES_MAX)
    except FileMissingError:  # it expired meanwhile
        return []
    text = np.frombuffer(data, np.uint8) & 0xDF  # { becomes [ and } becomes ]
    depth = np.cumsum((text == ord("[")).astype(np.int8) - (text == ord("]")).astype(np.int8), dtype=np.int64)
    if len(depth) and int(depth.max()) > _DEPTH_MAX:
        raise NotReadableError(f"{storage.uri}: its Delta log holds JSON that is nested too deep, in {path}")
    if b"eletionVector" not in data and b"\\u" not in data:
        return []
    return [line for line in data.splitlines() if b"eletionVector" in line or b"\\u" in line]


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
