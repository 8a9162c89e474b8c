"""Faults on a local disk: bytes that flip, processes that die at any call, another writer in between.

watched_disk(make)     context: the local storage makes its calls to the disk by `make`
killed_at(n)           context: the process dies at the n-th call to the disk
before_publishing      another writer acts just before a handle publishes a version
index_files            the files of an index by kind: instants, manifest runs, index runs, task index files, the hint
flipped(path)          context: one byte of a file is wrong
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import skipstone as ss
from skipstone.engine.state import Instant
from skipstone.engine.storage import local
from skipstone.hfile_like import source

CALLS = (
    *("open", "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "stat", "pread", "scandir"),
    "write",
)


class _WatchedOs:
    """Stands in for the `os` module: `make(name, *arguments)` makes each call to the disk."""

    def __init__(self, make: Callable[..., Any]):
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._make, name) if name in CALLS else getattr(os, name)


@contextlib.contextmanager
def watched_disk(make: Callable[..., Any], opened: Callable[..., Any] = builtins.open) -> Iterator[None]:
    """The local storage makes its calls of `os` by `make(name, *arguments)`, and opens files by `opened`."""
    before = local.os, source.os, getattr(local, "open", builtins.open)
    local.os = source.os = _WatchedOs(make)  # type: ignore[attr-defined, assignment]
    local.open = opened  # type: ignore[attr-defined]
    try:
        yield
    finally:
        local.os, source.os, local.open = before  # type: ignore[attr-defined]


def make_unflushed(name: str, *arguments: Any, **options: Any) -> Any:
    """Make a call of `os`, except a flush."""
    return None if name == "fsync" else getattr(os, name)(*arguments, **options)


class KilledError(BaseException):
    """Nothing that a process does after this has an effect."""


class Death:
    """Counts calls to the disk; call `at` and all later ones raise a KilledError. 0 only counts."""

    def __init__(self, at: int):
        self.calls, self._at = 0, at

    def step(self) -> None:
        self.calls += 1
        if 0 < self._at <= self.calls:
            raise KilledError


@contextlib.contextmanager
def killed_at(at: int) -> Iterator[Death]:
    """The process dies at the local storage's `at`-th call to the disk. Power is not cut, so nothing is flushed."""
    death = Death(at)

    def make(name: str, *arguments: Any, **options: Any) -> Any:
        death.step()
        return make_unflushed(name, *arguments, **options)

    class Written(io.BufferedWriter):
        def write(self, data: Any) -> int:
            death.step()
            return super().write(data)

    def opened(path: str, mode: str = "r") -> Any:
        death.step()
        return Written(io.FileIO(path, "w")) if mode == "wb" else builtins.open(path, mode)

    with watched_disk(make, opened):
        yield death


def index_files(table: ss.Table) -> dict[str, list[Path]]:
    """The files of an index by kind."""
    root = Path(table.handle.index_storage.root)
    instant = table.handle.instant
    return {
        "instant": [root / f"timeline/00000/{table.version:010d}.json"],
        "hint": [root / "timeline/HINT"],
        "manifest": [root / run.path for run in instant.manifest],
        "stats": [root / run.path for i in instant.indexes if i.kind == "stats" for run in i.runs],
        "filter": [root / run.path for i in instant.indexes if i.kind == "bloom" for run in i.runs],
        "task": sorted((root / "tasks").rglob("*.sbf")),
    }


def before_publishing(table: ss.Table, work: Callable[[], object]) -> None:
    """`work` is done once, just before this handle publishes its next version."""
    timeline, publish = table.handle.timeline, table.handle.timeline.publish

    def work_then_publish(instant: Instant) -> bool:
        timeline.publish = publish
        work()
        return publish(instant)

    timeline.publish = work_then_publish


@contextlib.contextmanager
def flipped(path: Path, offset: int, mask: int = 0x10) -> Iterator[None]:
    """One byte of a file differs inside the block; its size and time do not."""
    data, times = path.read_bytes(), path.stat()
    wrong = bytearray(data)
    wrong[offset] ^= mask
    path.write_bytes(wrong)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    try:
        yield
    finally:
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
