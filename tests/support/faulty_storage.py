"""A local storage with faults, one call of the interface at a time.

    before      the call is refused, and did nothing
    after       the call is done, and raises an error all the same: an ambiguous put
    short       a read returns fewer bytes than there are
    no space    this call and all later ones that need space are refused
    interrupted the user presses Ctrl-C just before the call
    late        every call may take a while; nothing else is wrong
    other       another writer does something just before the call

`troubled(fault)` replaces every storage that is opened within the block. `Fault.calls` lists the calls: (method, kind
of path).
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

from skipstone import StorageError
from skipstone.engine.storage import LocalStorage
from skipstone.engine.storage import open_storage as real_open_storage

NEED_SPACE = ("create", "put", "put_if_absent")
READS = ("read", "read_ranges")


class Fault:
    """A fault at call `at` (1 and up; 0 for never) of the storages that share it; another writer does `other()`."""

    def __init__(self, kind: str = "before", at: int = 0, seed: int = 0, other: Callable[[], object] | None = None):
        self.kind, self.at, self._other = kind, at, other
        self.calls: list[tuple[str, str]] = []
        self.is_on = True
        self._lock = threading.Lock()
        self._chance = random.Random(seed)

    def count(self, method: str, path: str) -> bool:
        """Note a call; return True if it is the one that fails."""
        if not self.is_on:
            return False
        with self._lock:
            self.calls.append((method, kind_of(path)))
            is_due = len(self.calls) == self.at
            if self.kind == "no space":
                is_due = 0 < self.at <= len(self.calls) and method in NEED_SPACE
            pause_s = self._chance.random() ** 4 * 0.02 if self.kind == "late" else 0
        if pause_s:
            time.sleep(pause_s)
        if is_due and self._other is not None:
            self.is_on = False  # calls of the other writer are not counted
            try:
                self._other()
            finally:
                self.is_on = True
            return False
        return is_due and (self.kind != "short" or method in READS)

    def error(self, path: str) -> StorageError | KeyboardInterrupt:
        if self.kind == "interrupted":
            return KeyboardInterrupt()
        return StorageError(f"{path}: {'No space left on device' if self.kind == 'no space' else 'an error'}")


class TroubledStorage:
    """A local storage, and a fault."""

    def __init__(self, storage: LocalStorage, fault: Fault):
        self._storage, self._fault = storage, fault

    def __getattr__(self, name: str):
        return getattr(self._storage, name)

    def stat(self, path: str):
        return self._call("stat", path)

    def list_folder(self, path: str, first: str = ""):
        return self._call("list_folder", path, first)

    def delete(self, path: str) -> None:
        self._call("delete", path)

    def put(self, path: str, data: bytes, *, is_durable: bool = True) -> None:
        self._call("put", path, data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return self._call("put_if_absent", path, data)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        is_due = self._fault.count("read", path)
        if is_due and self._fault.kind != "short":
            raise self._fault.error(path)
        data = self._storage.read(path, max_bytes)
        return data[: len(data) // 2] if is_due else data

    def read_entry(self, path: str, max_bytes: int | None = None):
        return self.stat(path), self.read(path, max_bytes)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        is_due = self._fault.count("read_ranges", path)
        if is_due and self._fault.kind != "short":
            raise self._fault.error(path)
        parts = self._storage.read_ranges(path, ranges)
        return [part[: len(part) // 2] for part in parts] if is_due else parts

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        is_due = self._fault.count("create", path)
        if is_due and self._fault.kind in ("before", "no space", "interrupted"):
            raise self._fault.error(path)
        with self._storage.create(path) as file:
            yield file
        if is_due:
            raise self._fault.error(path)

    def put_all(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            with self.create(path) as file:
                file.write(data)

    def _call(self, method: str, path: str, *more):
        is_due = self._fault.count(method, path)
        if is_due and self._fault.kind != "after":
            raise self._fault.error(path)
        done = getattr(self._storage, method)(path, *more)
        if is_due:
            raise self._fault.error(path)
        return done


@contextlib.contextmanager
def troubled(fault: Fault) -> Iterator[Fault]:
    """Every storage that is opened in this block has the fault, until the end of the block."""
    modules = [m for n, m in list(sys.modules.items()) if n.startswith("skipstone") and hasattr(m, "open_storage")]

    def opened(*args, **kwargs) -> TroubledStorage:
        return TroubledStorage(real_open_storage(*args, **kwargs), fault)

    for module in modules:
        module.open_storage = opened  # type: ignore[attr-defined]
    try:
        yield fault
    finally:
        fault.is_on = False
        for module in modules:
            module.open_storage = real_open_storage  # type: ignore[attr-defined]


def kind_of(path: str) -> str:
    """The kind of file at a path: instant, hint, task, manifest run, index run, data."""
    if path.endswith("HINT"):
        return "hint"
    for folder, kind in (("timeline", "instant"), ("tasks", "task")):
        if path.startswith(folder):
            return kind
    found = re.search(r"^runs/.*-([a-z])[0-9m]*-?[0-9]*\.sbf$", path)
    if path.startswith("runs"):
        return f"run {found[1] if found else ''}"
    return "data"
