"""A power cut, simulated: which bytes and which names were on the disk at each call that was made to it.

A `PowerDisk` stands in for the `os` module and for `open` of the local storage. Every call has its effect on the real
disk, and in a model of what is durable: a file's bytes once it is flushed, a name in a folder once the folder is. No
call flushes in truth. Before each call a `Moment` is kept, so one run of an action gives every crash that it can have:

    killed         the process dies: all that was done stands
    names only     power is cut: names stand, bytes that were not flushed are lost (a metadata journal without data)
    flushed only   power is cut: bytes and names that were not flushed are lost
    at random      power is cut: each name that was not flushed stands or not, files are cut anywhere

`Moment.tree(way)` is the tree that a restart would find; `put_tree` writes it somewhere to be opened. A disk that
`begins` at a moment goes on from there: what was not durable then is not durable yet.
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

from skipstone.engine.storage import local
from skipstone.hfile_like import source as byte_io

WAYS = ("killed", "names only", "flushed only", "at random")
COUNTED = (
    *("open", "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "stat", "pread", "scandir"),
    "write",
)

Tree = dict[str, tuple[bytes, int] | None]  # by path: bytes and time; None for a folder


class File:
    """One file's bytes as the kernel has them, whatever its names."""

    def __init__(self, data: bytes = b"", modified_ns: int = 0):
        self.data, self.flushed, self.modified_ns = bytearray(data), len(data), modified_ns


Names = dict[str, File | None]  # by path; None for a folder


@dataclass(frozen=True)
class Moment:
    """What stood, and what would stand after a power cut, just before a call. `sizes`: bytes written and bytes flushed
    of each file then."""

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
        """The files as they were then, by what became of them."""
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
    """The calls of the local storage below `root`, made and modelled. Used as a context manager; threads may share it.

    Args:
        root: the folder that holds the table; it must exist.
        begins: go on from this moment, whose live tree was put to `root`.
        lies: called with the ordinal of each flush (1 and up); True where the disk only says that it flushed.
        refuses: as `lies`; True where the flush is an error.
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
        local.os = byte_io.os = _Os(self)  # type: ignore[attr-defined, assignment]
        local.open = self._open  # type: ignore[attr-defined]
        return self

    def __exit__(self, *exception: object) -> None:
        self.keep("the end")
        local.os = byte_io.os = os  # type: ignore[attr-defined]
        del local.open  # type: ignore[attr-defined]

    def keep(self, call: str) -> None:
        """Keeps the moment before a call."""
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
        """A path below the root, "" for the root; None for one that lies elsewhere."""
        real = os.path.abspath(path)
        if real == self.root:
            return ""
        return real[len(self.root) + 1 :] if real.startswith(self.root + "/") else None

    # -- what a call does to the model --------------------------------------------------------------------------------

    def made(self, path: str, file: File | None) -> None:
        name = self.name(path)
        if name is not None:
            self._live[name] = file

    def gone(self, path: str) -> None:
        name = self.name(path)
        if name is not None:
            self._live.pop(name, None)

    def linked(self, old: str, new: str) -> None:
        name = self.name(old)
        if name is not None:
            self.made(new, self._live[name])

    def descriptor(self, number: int, path: str) -> None:
        self._opened[number] = path

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
            self.descriptor(raw.fileno(), path)
        return io.BufferedWriter(raw)


class _Raw(io.FileIO):
    """A file whose bytes are written to the model, too."""

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


class _Os:
    """The `os` module with each counted call told to the disk."""

    def __init__(self, disk: PowerDisk):
        self._disk = disk

    def __getattr__(self, name: str):
        found = getattr(os, name)
        if name not in COUNTED:
            return found

        def counted(*args, **kwargs):
            with self._disk._lock:
                self._disk.keep(f"{name} {args[0]}")
                result = None if name == "fsync" else found(*args, **kwargs)
                self._tell(name, args, result)
                return result

        return counted

    def _tell(self, name: str, args: tuple, result) -> None:
        disk = self._disk
        if name == "fsync":
            disk.flush(args[0])
        elif name == "open":
            disk.descriptor(result, args[0])
        elif name in ("rename", "replace", "link"):
            disk.linked(args[0], args[1])
            if name != "link":
                disk.gone(args[0])
        elif name in ("unlink", "rmdir"):
            disk.gone(args[0])
        elif name == "mkdir":
            disk.made(args[0], None)


def put_tree(tree: Tree, root: Path) -> None:
    """Writes a tree, times and all, to a folder that is not there yet."""
    root.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir(exist_ok=True)
        else:
            (root / path).write_bytes(content[0])
            os.utime(root / path, ns=(content[1], content[1]))


def digest(tree: Tree) -> str:
    """Equal for trees that nobody can tell apart."""
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


@contextlib.contextmanager
def without_flushes() -> Iterator[None]:
    """No call to the disk is flushed in truth: for checks after a crash, where nothing is cut again."""
    local.os = byte_io.os = _NoFlush()  # type: ignore[attr-defined, assignment]
    try:
        yield
    finally:
        local.os = byte_io.os = os  # type: ignore[attr-defined]


class _NoFlush:
    def __getattr__(self, name: str):
        return (lambda descriptor: None) if name == "fsync" else getattr(os, name)
