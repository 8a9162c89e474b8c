"""The golden tables: packing one with its answers, restoring it, and querying it again.

A table is one archive, `NAME.tar.gz`: its files and `times.json`, their modification times in nanoseconds, which are
part of what an index contains of a file. `NAME.json` next to it has the answers. Indexes and Iceberg's metadata contain
absolute paths, so a table is restored in the folder in which it was created, by one process at a time.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import fcntl
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import skipstone as ss

FOLDER = Path(__file__).parents[1] / "golden"
PLACE = Path("/tmp/skipstone-golden")  # where all of them were created
SUMS = FOLDER / "SHA256SUMS"
_TIMES = "times.json"
_WAIT_S = 300.0  # at most, for the tests of another user


def names() -> list[str]:
    """The names of the golden tables."""
    return sorted(path.name.removesuffix(".tar.gz") for path in FOLDER.glob("*.tar.gz"))


@contextlib.contextmanager
def place(name: str) -> Iterator[Path]:
    """The empty folder of a table, of this process alone; removed at the end. If `/tmp` is a link, as on macOS, tables
    have the real paths that their indexes name."""
    locked, real = _locked_place(), os.path.realpath

    def recorded_path(path: Any, **options: Any) -> Any:
        return real(path, **options).replace(real(PLACE), str(PLACE), 1)

    root = PLACE / name
    try:
        shutil.rmtree(root, ignore_errors=True)  # of a process that was killed
        root.mkdir()
        with contextlib.nullcontext() if real(PLACE) == str(PLACE) else mock.patch("os.path.realpath", recorded_path):
            yield root
    finally:
        shutil.rmtree(PLACE)
        os.close(locked)


def _locked_place() -> int:
    """Create PLACE for this user alone, and lock it. Return its descriptor.

    Any user may create it in `/tmp`, also as a link: only a folder of this user counts, and this process waits until
    that of another user is removed. A process removes it while it has the lock, so the others then begin again."""
    end_s = time.monotonic() + _WAIT_S
    while time.monotonic() < end_s:
        with contextlib.suppress(FileExistsError):
            PLACE.mkdir(0o700)
        try:
            found = PLACE.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                folder = os.open(PLACE, os.O_RDONLY | os.O_NOFOLLOW)
                fcntl.flock(folder, fcntl.LOCK_EX)
                if PLACE.exists() and os.path.samestat(os.fstat(folder), PLACE.lstat()):
                    return folder
                os.close(folder)
                continue
        except FileNotFoundError:  # its process removed it
            continue
        time.sleep(0.1)
    raise PermissionError(f"{PLACE} is not a folder of this user, and was not removed in {_WAIT_S:.0f} s")


def pack(name: str, root: Path, location: str, queries: list[str]) -> None:
    """Write the archive of a folder, in which the table is at `location`, and its answers. An existing table is never
    changed."""
    archive, answers_path = FOLDER / f"{name}.tar.gz", FOLDER / f"{name}.json"
    if archive.exists():
        raise FileExistsError(f"{archive} is a golden table; give the new one another name")
    found = {"location": location, "queries": queries, **answers(root / location, queries)}
    files = sorted(path for path in root.rglob("*") if path.is_file())
    folders = sorted(path for path in [root, *root.rglob("*")] if path.is_dir())
    times = {path.relative_to(root).as_posix(): path.stat().st_mtime_ns for path in [*files, *folders]}
    with gzip.GzipFile(archive, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        _add(tar, _TIMES, json.dumps(times).encode())
        for path in files:
            _add(tar, path.relative_to(root).as_posix(), path.read_bytes())
    answers_path.write_text(_lines(found) + "\n", encoding="utf-8")
    with SUMS.open("a", encoding="utf-8") as sums:
        sums.write(f"{checksum(name)}  {archive.name}\n")


def checksum(name: str) -> str:
    """SHA-256 of a table's archive."""
    return hashlib.sha256((FOLDER / f"{name}.tar.gz").read_bytes()).hexdigest()


def _lines(value: Any, depth: int = 3) -> str:
    """JSON with a line for each value down to a depth."""
    if not isinstance(value, dict) or not depth:
        return json.dumps(value, ensure_ascii=False)
    inner = ",\n".join(f"{json.dumps(key, ensure_ascii=False)}: {_lines(value[key], depth - 1)}" for key in value)
    return f"{{\n{inner}\n}}"


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def restore(name: str, root: Path) -> None:
    """Extract a table with the times of its files."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as tar:
        tar.extractall(root, filter="data")
    times = json.loads((root / _TIMES).read_text())
    (root / _TIMES).unlink()
    for path in times:
        (root / path).is_dir() or (root / path).exists() or (root / path).mkdir(parents=True)
    for path in sorted(times, key=len, reverse=True):  # what is in a folder before the folder
        os.utime(root / path, ns=(times[path], times[path]))


def recorded(name: str) -> dict:
    """The answers that a table gave when it was created."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def answers(location: Path, queries: list[str], newest_alone: bool = False) -> dict:
    """The answers of a table: for each query at each version, the rows and the numbers of planned files and row groups;
    and its history, savepoints, indexes and findings. `newest_alone`: of the newest version alone."""
    table = ss.open(location)
    history, indexes = table.history(), table.indexes()
    versions: dict[str, Any] = {}
    for version in [table.version] if newest_alone else history.column("version").to_pylist():
        try:
            then = ss.open(location, version=version)
        except ss.NotATableError:
            versions[str(version)] = "cleaned"
            continue
        versions[str(version)] = {query: _answer(then, query) for query in queries}
    return {
        "versions": versions,
        "actions": history.column("action").to_pylist(),
        "savepoints": table.savepoints().column("name").to_pylist(),
        "indexes": _plain(indexes.select(["name", "kind", "files_covered", "files_total"]).to_pylist()),
        "verify": [str(finding) for finding in table.verify(deep=True)],
    }


def _answer(table: ss.Table, query: str) -> dict:
    """The rows, or the error that reading them raises; and how many files and row groups are planned."""
    try:
        plan = table.scan(query or None)
        planned = [plan.files().num_rows, plan.row_groups().num_rows]
    except ss.PredicateError as error:  # there is no such column at this version
        return {"rows": type(error).__name__, "planned": [0, 0]}
    try:
        rows: Any = sorted((_plain(row) for row in plan.to_table().to_pylist()), key=json.dumps)
    except ss.NotReadableError as error:
        rows = type(error).__name__
    return {"rows": rows, "planned": planned}


def _plain(value: Any) -> Any:
    """A value for JSON, the same with any versions of the libraries."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in sorted(value.items())}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        return (value.astimezone(dt.UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, (dt.date, dt.time, decimal.Decimal, dt.timedelta)):
        return str(value)
    return value
