"""Making things go wrong: bytes that flip, disks that refuse, processes that die at any step.

Power is never cut here, so under a `FaultyOs` nothing is flushed to the disk: a call of `fsync` is counted, not made.

FaultyOs        stands in for the `os` module of the local storage: counts its calls, and from one of them on raises
fault_at(n)     context: the n-th call to the disk, and where `lasting` every later one, raises
index_files     the files of an index by kind: instants, manifest runs, index runs, task index files, the hint
flipped(path)   context: one bit of a file is wrong
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import skipstone as ss
from skipstone.engine.storage import local

CALLS = ("open", "rename", "link", "unlink", "fsync", "mkdir", "stat", "pread", "scandir", "write")


class KilledError(BaseException):
    """What a process feels of SIGKILL: nothing that it does from here on has any effect."""


class FaultyOs:
    """The `os` module, its calls to the disk counted; `fault()` is raised at call `at`, and after it if lasting."""

    def __init__(self, at: int, fault: Callable[[], BaseException], lasting: bool, counted: Sequence[str]):
        self.calls, self._at, self._fault, self._lasting, self.counted = 0, at, fault, lasting, counted

    def __getattr__(self, name: str):
        found = getattr(os, name)
        if name not in self.counted:
            return found

        def counted(*args, **kwargs):
            self.step()
            return None if name == "fsync" else found(*args, **kwargs)

        return counted

    def step(self) -> None:
        self.calls += 1
        if self.calls == self._at or (self._lasting and 0 < self._at < self.calls):
            raise self._fault()


@contextlib.contextmanager
def fault_at(
    at: int, fault: Callable[[], BaseException], lasting: bool = False, counted: Sequence[str] = CALLS
) -> Iterator[FaultyOs]:
    """The local storage's `at`-th call to the disk (1 and up) raises `fault()`; 0 only counts."""
    shim = FaultyOs(at, fault, lasting, counted)

    class Written(io.BufferedWriter):
        def write(self, data) -> int:
            if "write" in counted:
                shim.step()
            return super().write(data)

    def opened(path, mode="r"):
        shim.step()
        return Written(io.FileIO(path, "w")) if mode == "wb" else builtins.open(path, mode)

    before = local.os
    local.os, local.open = shim, opened  # type: ignore[attr-defined]
    try:
        yield shim
    finally:
        local.os = before
        del local.open  # type: ignore[attr-defined]


def index_files(table: ss.Table) -> dict[str, list[Path]]:
    """The files under the index root by what they are."""
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


@contextlib.contextmanager
def flipped(path: Path, offset: int, mask: int = 0x10) -> Iterator[None]:
    """One byte of a file differs inside the block; size and time stay as they were."""
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
