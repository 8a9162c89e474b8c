"""Read and write the bytes of a sorted-block file.

A `Source` reads ranges. An object store, for example, needs `size` and `read_ranges`; a `name` makes its errors
readable. An `Output` accepts bytes in order: a path, which is written completely or not at all, or a file object.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from ..errors import CorruptionError, InvalidArgumentError, NotATableError, SkipstoneError, StorageError

# Neighbours closer than this are one read: on a local disk that costs less than a call, on an object store far less.
COALESCE_GAP_BYTES = 16 * 1024


@runtime_checkable
class Source(Protocol):
    """Stored bytes. It must be safe to call from several threads."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read_ranges(self, ranges: list[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """Return the bytes of each (offset, length), in the order given."""


class PathSource:
    """A local file, open until it is closed. Close it only when no other thread reads."""

    _fd = -1

    def __init__(self, path: str | os.PathLike[str]):
        self.name = os.fspath(path)
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
            status = os.fstat(self._fd)
        except (FileNotFoundError, NotADirectoryError):
            raise NotATableError(f"{self.name}: there is no such file") from None
        except (OSError, ValueError) as error:
            self.close()
            raise StorageError(f"{self.name}: cannot be opened ({error})") from error
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise NotATableError(f"{self.name}: is not a file")
        self.size = status.st_size

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        if self._fd < 0:
            raise InvalidArgumentError(f"{self.name}: was closed; open it again to read")
        return [self._read(offset, length) for offset, length in ranges]

    def _read(self, offset: int, length: int) -> bytes:
        length = min(length, max(0, self.size - offset))
        data = os.pread(self._fd, length, offset)
        # One pread returns at most 2 GiB on Linux, and may return less anywhere.
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # A reader that was dropped and not closed must not leak its file.
        self.close()


class BytesSource:
    """A file in memory."""

    def __init__(self, data: bytes | bytearray | memoryview | pa.Buffer):
        self._view = memoryview(data).cast("B")
        self.size = len(self._view)

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        return [self._view[offset : offset + length] for offset, length in ranges]

    def close(self) -> None:
        self._view = memoryview(b"")


def open_source(thing: object) -> tuple[Source, bool]:
    """Return (source, whether it was opened here and must be closed) for a path, bytes, or a source."""
    if isinstance(thing, (str, os.PathLike)):
        return PathSource(thing), True
    if isinstance(thing, (bytes, bytearray, memoryview, pa.Buffer)):
        return BytesSource(thing), True
    if hasattr(thing, "size") and hasattr(thing, "read_ranges"):
        return thing, False
    raise InvalidArgumentError(
        f"cannot read from {type(thing).__name__}: give a path, bytes, or an object with `size` and `read_ranges`"
    )


def close_source(source: object) -> None:
    """Close a source that `open_source` opened."""
    if isinstance(source, (PathSource, BytesSource)):
        source.close()


def name_of(source: object) -> str | None:
    """Return the name of a source for errors."""
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else None


def read_exact(
    source: Source, ranges: Sequence[tuple[int, int]], gap_bytes: int = COALESCE_GAP_BYTES
) -> list[memoryview]:
    """Return the bytes of each (offset, length); neighbours are one read. Raise CorruptionError if the source ends
    before, StorageError if it fails."""
    if len(ranges) < 2:
        return _read_all(source, list(ranges)) if ranges else []
    order = sorted(range(len(ranges)), key=ranges.__getitem__)
    merged: list[tuple[int, int]] = []
    home = [0] * len(ranges)
    for i in order:
        offset, length = ranges[i]
        if merged and offset <= sum(merged[-1]) + gap_bytes:
            start = merged[-1][0]
            merged[-1] = (start, max(merged[-1][1], offset + length - start))
        else:
            merged.append((offset, length))
        home[i] = len(merged) - 1
    parts = _read_all(source, merged)
    pieces = []
    for i, (offset, length) in enumerate(ranges):
        start = offset - merged[home[i]][0]
        pieces.append(parts[home[i]][start : start + length])
    return pieces


def _read_all(source: Source, ranges: list[tuple[int, int]]) -> list[memoryview]:
    try:
        parts = [memoryview(part).cast("B") for part in source.read_ranges(ranges)]
    except SkipstoneError:
        raise
    except OSError as error:
        raise StorageError(f"{name_of(source) or 'source'}: reading failed ({error})") from error
    for (offset, length), part in zip(ranges, parts, strict=True):
        if len(part) != length:
            raise CorruptionError(
                f"{length} bytes were requested and {len(part)} exist; the file is cut short: restore it",
                path=name_of(source),
                offset=offset,
                check="range",
            )
    return parts


class PathOutput:
    """A temporary file next to the target; `commit` makes it durable and renames it to the target."""

    def __init__(self, path: str | os.PathLike[str]):
        self.name = os.fspath(path)
        if not isinstance(self.name, str) or not os.path.basename(self.name):
            raise InvalidArgumentError(f"{path!r} is no path of a file to write")
        folder, base = os.path.split(os.path.abspath(self.name))
        self._target, self._folder = os.path.join(folder, base), folder
        self._temporary = os.path.join(folder, f".{base[:100]}.{os.urandom(8).hex()}.tmp")
        try:
            self._file = open(self._temporary, "xb", buffering=1 << 18)  # noqa: SIM115
        except (OSError, ValueError) as error:
            raise StorageError(f"{self.name}: cannot be written ({error})") from error

    def write(self, data: bytes | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise StorageError(f"{self.name}: writing failed ({error})") from error

    def commit(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self._target)
            fsync_folder(self._folder)
        except OSError as error:
            self.discard()
            raise StorageError(f"{self.name}: cannot be published ({error})") from error

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)


class ObjectOutput:
    """A writable binary file object; offsets count from its position. The caller closes it."""

    def __init__(self, target):
        self.name = str(getattr(target, "name", "file object"))
        self._target = target

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:
                written = self._target.write(view)
                if written == 0 or (written is None and isinstance(self._target, io.RawIOBase)):
                    raise StorageError(f"{self.name}: takes no more bytes: give a file that waits until it can")
                # A raw file may write only a part; most objects write all, and some of them return None.
                view = view[len(view) if written is None else written :]
        except TypeError as error:
            raise InvalidArgumentError(f"{self.name}: takes no bytes: give a writable binary file ({error})") from error
        except (OSError, ValueError) as error:
            raise StorageError(f"{self.name}: writing failed ({error})") from error

    def commit(self) -> None:
        flush = getattr(self._target, "flush", None)
        try:
            if flush is not None:
                flush()
        except (OSError, ValueError) as error:
            raise StorageError(f"{self.name}: writing failed ({error})") from error

    def discard(self) -> None:
        """Keep the written bytes: without a trailer, no reader opens them."""


Output = PathOutput | ObjectOutput


def open_output(target: object) -> Output:
    """Return an output for a path or a writable file object. Raise InvalidArgumentError, StorageError."""
    if isinstance(target, (str, os.PathLike)):
        return PathOutput(target)
    if callable(getattr(target, "write", None)):
        return ObjectOutput(target)
    raise InvalidArgumentError(f"cannot write to {type(target).__name__}: give a path or a writable binary file")


def fsync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
