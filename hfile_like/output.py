"""Where a sorted-block file is written to: a path, whole or absent, or a file object that the caller keeps."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from typing import Protocol

from ..errors import InvalidArgumentError, StorageError


class Output(Protocol):
    """Takes bytes in order; `commit` publishes them, `discard` leaves nothing. `name` is for errors."""

    name: str

    def write(self, data: bytes | memoryview) -> None: ...

    def commit(self) -> None: ...

    def discard(self) -> None: ...


class PathOutput:
    """A temporary beside the target, made durable and renamed over it by `commit`."""

    def __init__(self, path: str | os.PathLike[str]):
        self.name = os.fspath(path)
        if not isinstance(self.name, str) or not os.path.basename(self.name):
            raise InvalidArgumentError(f"{path!r} is no path of a file to write")
        folder, base = os.path.split(os.path.abspath(self.name))
        self._target, self._folder = os.path.join(folder, base), folder
        self._temporary = os.path.join(folder, f".{base[:100]}.{secrets.token_hex(8)}.tmp")
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
    """A writable binary file object; offsets count from where it stands. Closing it is the caller's."""

    def __init__(self, target):
        self.name = str(getattr(target, "name", "file object"))
        self._target = target

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:
                taken = self._target.write(view)
                if taken == 0 or (taken is None and isinstance(self._target, io.RawIOBase)):
                    raise StorageError(f"{self.name}: takes no more bytes: give a file that waits until it can")
                # A raw file may take part of it; most objects take all, and some of them return None.
                view = view[len(view) if taken is None else taken :]
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
        """What was written stays with the caller; without a trailer it is no file that opens."""


def open_output(target: object) -> Output:
    """An output for a path or a writable file object. Raises InvalidArgumentError, StorageError."""
    if isinstance(target, (str, os.PathLike)):
        return PathOutput(target)
    if callable(getattr(target, "write", None)):
        return ObjectOutput(target)
    raise InvalidArgumentError(f"cannot write to {type(target).__name__}: give a path or a writable binary file")


def fsync_folder(folder: str) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
