"""A simulated power cut: which bytes and which names are on the disk at each call.

A `PowerDisk` makes the calls of the local storage to the disk, and models what is durable: a file's bytes once the file
is flushed, a name in a folder once the folder is flushed. It never flushes. Before each call it keeps a `Moment`, so
one run of an action gives every crash that it can have:

    killed         the process dies: everything is kept
    names only     power is cut: names are kept, bytes that were not flushed are lost (a metadata journal without data)
    flushed only   power is cut: bytes and names that were not flushed are lost
    at random      power is cut: each name that was not flushed is kept or lost, files are cut anywhere

`Moment.tree(way)` is the tree that a restart would find. `put_tree` writes it to a folder. A disk that `begins` at a
moment continues from there: what was not durable then is not durable yet.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import io
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults import make_unflushed, watched_disk

WAYS = ("killed", "names only", "flushed only", "at random")

Tree = dict[str, tuple[bytes, int] | None]  # by path: bytes and time; None for a folder


class File:
    """The bytes of one file, under any name."""

    def __init__(self, data: bytes = b"", modified_ns: int = 0):
        self.data, self.flushed, self.modified_ns = bytearray(data), len(data), modified_ns


Names = dict[str, File | None]  # by path; None for a folder


@dataclass(frozen=True)
class Moment:
    """The names before a call, those that are durable, and of each file the bytes written and the bytes flushed."""

    call: str
    live: Names
    durable: Names
    sizes: dict[File, tuple[int, int]]

    def tree(self, way: str, chance: random.Random | None = None) -> Tree:
        """The tree after a crash at this moment."""
        if way in ("killed", "names only"):
            names = self.live
        elif way == "flushed only":
            names = self.durable
        else:
            assert chance is not None
            names = {}
            for path in {**self.live, **self.durable}:
                source = chance.choice((self.live, self.durable))
                if path in source:
                    names[path] = source[path]
        found: Tree = {}
        for path in sorted(names):
            if all(parent in names for parent in _parents(path)):
                file = names[path]
                found[path] = None if file is None else (self._bytes(file, way, chance), file.modified_ns)
        return found

    def files(self) -> dict[File, File]:
        """The files at that moment, by the files of now."""
        again = {}
        for file, (written, flushed) in self.sizes.items():
            again[file] = File(bytes(file.data[:written]), file.modified_ns)
            again[file].flushed = flushed
        return again

    def _bytes(self, file: File, way: str, chance: random.Random | None) -> bytes:
        written, flushed = self.sizes[file]
        if way == "at random":
            assert chance is not None
            return bytes(file.data[: chance.randint(flushed, written)])
        return bytes(file.data[: written if way == "killed" else flushed])


class PowerDisk:
    """Makes and models the calls of the local storage below `root`. A context manager; threads may share it.

    Args:
        root: the folder of the table; it must exist.
        begins: continue from this moment, whose live tree was put to `root`.
        lies: called with the number of each flush (1 and up); True if the disk drops it.
        refuses: as `lies`; True if the flush is an error.
    """

    def __init__(
        self,
        root: Path,
        begins: Moment | None = None,
        lies: Callable[[int], bool] = lambda flush: False,
        refuses: Callable[[int], bool] = lambda flush: False,
    ):
        self.root = os.path.realpath(root)
        self.moments: list[Moment] = []
        self.flushes = 0
        self._lies, self._refuses = lies, refuses
        self._lock = threading.RLock()
        self._opened: dict[int, str] = {}  # by descriptor
        self._live = self._found() if begins is None else begins.live
        self._durable = dict(self._live)
        if begins is not None:
            again = begins.files()
            self._live, self._durable = (
                {path: file and again[file] for path, file in names.items()} for names in (begins.live, begins.durable)
            )

    def __enter__(self) -> PowerDisk:
        self._watch = watched_disk(self._make, self._open)
        self._watch.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.keep("the end")
        self._watch.__exit__(None, None, None)

    def keep(self, call: str) -> None:
        """Keep the moment before a call."""
        with self._lock:
            files = [f for f in (*self._live.values(), *self._durable.values()) if f is not None]
            sizes = {file: (len(file.data), file.flushed) for file in files}
            self.moments.append(Moment(call, dict(self._live), dict(self._durable), sizes))

    def _found(self) -> Names:
        names: Names = {"": None}
        for path in sorted(Path(self.root).rglob("*")):
            name = path.relative_to(self.root).as_posix()
            names[name] = None if path.is_dir() else File(path.read_bytes(), path.stat().st_mtime_ns)
        return names

    def name(self, path: str) -> str | None:
        """A path below the root, "" for the root, None for a path elsewhere."""
        real = os.path.abspath(path)
        if real == self.root:
            return ""
        return real[len(self.root) + 1 :] if real.startswith(self.root + "/") else None

    # -- the calls ----------------------------------------------------------------------------------------------------

    def _make(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Make a call of `os`, and change the model."""
        with self._lock:
            self.keep(f"{name} {arguments[0]}")
            result = make_unflushed(name, *arguments, **options)
            if name == "fsync":
                self.flush(arguments[0])
            elif name == "open":
                self._opened[result] = arguments[0]
            elif name in ("rename", "replace", "link"):
                self._linked(arguments[0], arguments[1])
            elif name == "mkdir":
                self.made(arguments[0], None)
            if name in ("rename", "replace", "unlink", "rmdir") and (path := self.name(arguments[0])) is not None:
                self._live.pop(path, None)
            return result

    def made(self, path: str, file: File | None) -> None:
        name = self.name(path)
        if name is not None:
            self._live[name] = file

    def _linked(self, old: str, new: str) -> None:
        name = self.name(old)
        if name is not None:
            self.made(new, self._live[name])

    def flush(self, descriptor: int) -> None:
        self.flushes += 1
        if self._refuses(self.flushes):
            raise OSError(errno.EIO, "Input/output error")
        name = self.name(self._opened[descriptor])
        if name is None or self._lies(self.flushes):
            return
        file = self._live.get(name)
        if file is not None:
            file.flushed = len(file.data)
            file.modified_ns = os.stat(os.path.join(self.root, name)).st_mtime_ns
            return
        inside = f"{name}/" if name else ""  # a folder: the names in it, as they are now
        for path in {**self._durable, **self._live}:
            if path and path.startswith(inside) and "/" not in path[len(inside) :]:
                if path in self._live:
                    self._durable[path] = self._live[path]
                else:
                    del self._durable[path]

    def _open(self, path: str, mode: str = "r"):
        if mode != "wb":
            self.keep(f"open {path}")
            return builtins.open(path, mode)
        with self._lock:
            self.keep(f"create {path}")
            file = File()
            raw = _Raw(self, path, file)
            self.made(path, file)
            self._opened[raw.fileno()] = path
        return io.BufferedWriter(raw)


class _Raw(io.FileIO):
    """A file whose bytes are written to the model too."""

    def __init__(self, disk: PowerDisk, path: str, file: File):
        super().__init__(path, "w")
        self._disk, self._file = disk, file

    def write(self, data) -> int:
        with self._disk._lock:
            self._disk.keep(f"write {self.name!r}")
            taken = super().write(data)
            assert taken is not None
            self._file.data += memoryview(data).cast("B")[:taken]
            self._file.modified_ns = os.fstat(self.fileno()).st_mtime_ns
            return taken


def put_tree(tree: Tree, root: Path) -> None:
    """Write a tree with its times to a new folder."""
    root.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir(exist_ok=True)
        else:
            (root / path).write_bytes(content[0])
            os.utime(root / path, ns=(content[1], content[1]))


def digest(tree: Tree) -> str:
    """Equal for equal trees."""
    found = hashlib.blake2b(digest_size=16)
    for path, content in sorted(tree.items()):
        found.update(repr((path, None if content is None else content[1])).encode())
        found.update(b"" if content is None else content[0])
    return found.hexdigest()


def _parents(path: str) -> Iterator[str]:
    if path:
        yield ""
    parts = path.split("/")[:-1]
    for count in range(1, len(parts) + 1):
        yield "/".join(parts[:count])


def without_flushes() -> contextlib.AbstractContextManager[None]:
    """No call to the disk is flushed: for checks after a crash, where no power is cut again."""
    return watched_disk(make_unflushed)
