"""Where a sorted-block file is read from: anything with a size that answers range reads.

Another source (an object store, say) needs `size` and `read_ranges`; a `name` makes its errors readable.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from ..errors import CorruptionError, InvalidArgumentError, NotATableError, SkipstoneError, StorageError

# Neighbours closer than this are read as one: on a local disk it costs less than a call, on an object store far less.
COALESCE_GAP_BYTES = 16 * 1024


@runtime_checkable
class Source(Protocol):
    """Bytes at rest. Must be safe to call from several threads."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read_ranges(self, ranges: list[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """The bytes of each (offset, length), in the order given."""


class PathSource:
    """A local file, held open until closed. Close it only when no other thread reads."""

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
        # One pread gives at most 2 GiB on Linux, and may give less anywhere.
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
    """(source, whether it was opened here and is ours to close) from a path, bytes, or a source."""
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
    """Closes a source that `open_source` opened."""
    if isinstance(source, (PathSource, BytesSource)):
        source.close()


def name_of(source: object) -> str | None:
    """What errors call a source."""
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else None


def read_exact(
    source: Source, ranges: Sequence[tuple[int, int]], gap_bytes: int = COALESCE_GAP_BYTES
) -> list[memoryview]:
    """The bytes of each (offset, length), neighbours read as one. Raises CorruptionError where the source ends
    before, StorageError where it fails."""
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
                f"{length} bytes were asked for and {len(part)} are there; the file is cut short: restore it",
                path=name_of(source),
                offset=offset,
                check="range",
            )
    return parts
