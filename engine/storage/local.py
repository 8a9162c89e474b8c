"""Files on a local disk, or on anything mounted as one.

A file is published whole: it is written under a temporary name in the same folder and flushed to disk, then renamed,
then the folder is flushed, too. `put_if_absent` creates the name as a hard link, which fails if the name is taken. An
exclusive create would show the name before the bytes, and a crash there would block that version permanently. If a file
system has no hard links, Skipstone raises StorageError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import BinaryIO

from ...errors import CorruptionError, SkipstoneError, StorageError
from ...hfile_like.source import fsync_folder
from .interface import Entry, FileMissingError, UnreachableError, check_in_index, check_inside, check_size, leads_out
from .places import StorageOptions
from .threads import prefetched

TEMPORARY_PREFIX = "._tmp-"
_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_INDEX_FLAGS = _FLAGS | getattr(os, "O_NOFOLLOW", 0)
_NO_FILE = (errno.ELOOP, errno.ENXIO)  # a link that is not followed, or leads to itself; a socket
_NO_TARGET = (errno.ENOENT, errno.ELOOP)  # a link that leads nowhere, or to itself
_FLUSHES_ALONE = 4  # up to so many flushes take less time than starting threads
_FLUSH_THREADS = 4
_OPEN_AT_ONCE = 64  # files
_DURABLE_FOLDERS_MAX = 100_000
_NEIGHBOURS_MAX = 1_000  # up to so many folders next to a new one are listed, because one flush covers their names
_durable_folders: set[str] = set()  # folders whose names this process has flushed, or seen flushed


class LocalStorage:
    """A folder. It need not exist before the first write. `is_index`: it is an index root, in which only regular files
    are read, and no links are followed; the root may be a link."""

    is_remote = False
    gap_bytes = 0
    options = StorageOptions()

    def __init__(self, root: str | os.PathLike[str], *, is_index: bool = False):
        try:
            self.root = os.path.abspath(os.fspath(root))
        except OSError as error:
            raise StorageError(
                f"{os.fspath(root)}: a relative path needs a working directory, and this one does not exist; "
                "pass an absolute path, or change the working directory"
            ) from error
        self._is_index = is_index
        self.uri = self.root

    def __repr__(self) -> str:
        return f"LocalStorage({self.root!r})"

    def local_path(self, path: str) -> str:
        """Return a file's path on this disk. A file outside the root is named by an absolute path or a file:// URI; an
        index names none."""
        if self._is_index and leads_out(path):
            check_in_index(path)
        if path.startswith("file://"):
            return path[len("file://") :]
        if path.startswith("/"):
            return path
        if "://" in path:
            raise UnreachableError(f"{path}: is on another storage than {self.root}, and cannot be reached from there")
        return f"{self.root}/{path}" if path else self.root

    def kind(self) -> str | None:
        if os.path.isdir(self.root):
            return "folder"
        return "file" if os.path.lexists(self.root) else None

    def stat(self, path: str) -> Entry:
        place = self.local_path(path)
        try:
            status = os.stat(place, follow_symlinks=not self._is_index)
        except (OSError, ValueError) as error:
            with _Refusals(path):
                if isinstance(error, OSError) and error.errno in _NO_TARGET and os.path.islink(place):
                    raise FileMissingError(f"{path}: a link that leads nowhere") from None
                raise
        if self._is_index and not stat.S_ISREG(status.st_mode):
            raise self._not_regular(path)
        return Entry(path, status.st_size, status.st_mtime_ns)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        return self.read_entry(path, max_bytes)[1]

    def read_entry(self, path: str, max_bytes: int | None = None) -> tuple[Entry, bytes]:
        with self._opened(path) as (descriptor, status):
            check_size(path, status.st_size, max_bytes)
            data = _read_at(descriptor, 0, status.st_size)
        return Entry(path, status.st_size, status.st_mtime_ns), data

    def open_file(self, entry: Entry) -> str:
        return self.local_path(entry.path)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self._opened(path) as (descriptor, status):
            return [_read_at(descriptor, offset, min(length, status.st_size - offset)) for offset, length in ranges]

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[tuple[int, os.stat_result]]:
        """Yield the descriptor and the status of a regular file. This never waits for the writer of a FIFO."""
        with _Refusals(path):
            try:
                descriptor = os.open(self.local_path(path), _INDEX_FLAGS if self._is_index else _FLAGS)
            except OSError as error:
                if error.errno in _NO_FILE:
                    raise self._not_regular(path) from None
                raise
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise self._not_regular(path)
                yield descriptor, status
            finally:
                os.close(descriptor)

    def _not_regular(self, path: str) -> SkipstoneError:
        message = "is no regular file, but a folder, a link or a device"
        if self._is_index:
            return CorruptionError(f"{message}; restore the file", path=path, check="file")
        return UnreachableError(f"{path}: {message}")

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with self._temporary(path) as (file, temporary):
            try:
                yield file
            except SkipstoneError:
                raise
            except OSError as error:
                raise StorageError(f"{path}: {error.strerror or error}") from error
            with _Refusals(path):
                _flush(file)
                os.rename(temporary, self.local_path(path))
                fsync_folder(os.path.dirname(temporary))

    def put(self, path: str, data: bytes, *, is_durable: bool = True) -> None:
        if is_durable:
            with self.create(path) as file:
                file.write(data)
            return
        with self._temporary(path) as (file, temporary), _Refusals(path):
            file.write(data)
            file.flush()
            os.rename(temporary, self.local_path(path))

    def replace(self, path: str, data: bytes, entry: Entry) -> None:
        if self.stat(path) == entry:
            self.put(path, data)

    def put_all(self, files: Mapping[str, bytes]) -> None:
        names, folders = iter(files), dict[str, str]()
        while paths := list(islice(names, _OPEN_AT_ONCE)):
            with contextlib.ExitStack() as stack:
                opened = [(path, *stack.enter_context(self._temporary(path))) for path in paths]
                for path, file, _ in opened:
                    with _Refusals(path):
                        file.write(files[path])
                        file.flush()
                _flush_all([(path, partial(os.fsync, file.fileno())) for path, file, _ in opened])
                for path, _, temporary in opened:
                    with _Refusals(path):
                        os.rename(temporary, self.local_path(path))
            folders |= {os.path.dirname(self.local_path(path)): path for path in paths}
        _flush_all([(path, partial(fsync_folder, folder)) for folder, path in folders.items()])

    def put_if_absent(self, path: str, data: bytes) -> bool:
        target = self.local_path(path)
        with self._temporary(path) as (file, temporary), _Refusals(path):
            file.write(data)
            _flush(file)
            try:
                os.link(temporary, target)
            except FileExistsError:
                fsync_folder(os.path.dirname(target))
                return False
            except OSError as error:
                if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise StorageError(
                        f"{self.root}: this file system has no hard links, so a commit cannot be atomic here",
                        hint="keep the index elsewhere with {index_path}",
                    ) from error
                raise
            fsync_folder(os.path.dirname(target))
        return True

    def list_folder(self, path: str, first: str = "") -> tuple[list[Entry], list[str]]:
        files: list[Entry] = []
        folders: list[str] = []
        prefix = f"{path}/" if path else ""
        try:
            with os.scandir(self.local_path(path)) as entries:
                for entry in entries:
                    if entry.name < first:
                        continue
                    try:
                        if entry.is_dir():
                            if not self._leads_inside(entry):
                                folders.append(entry.name)
                            continue
                        status = entry.stat()
                    except OSError as error:
                        if error.errno not in _NO_TARGET:
                            raise
                        if entry.is_symlink() and not self._is_index:  # a read of it reports that it leads nowhere
                            files.append(Entry(prefix + entry.name, 0, 0))
                        continue  # an entry that is no link was removed in between
                    files.append(Entry(prefix + entry.name, status.st_size, status.st_mtime_ns))
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        except OSError as error:
            raise StorageError(f"{self.local_path(path)}: cannot list: {error}") from error
        return files, folders

    def peek(self, path: str) -> list[str]:
        return [entry.path.rsplit("/", 1)[-1] for entry in self.list_folder(path)[0]]

    def delete(self, path: str) -> None:
        check_inside(path)
        if not self.has_link(path):
            with contextlib.suppress(FileMissingError), _Refusals(path):
                os.unlink(self.local_path(path))

    def settle_deletes(self, paths: Iterable[str], *, with_folders: bool = False) -> None:
        folders: set[str] = set()
        for path in paths:
            names = path.split("/")
            folders.update("/".join(names[:count]) for count in range(len(names)))
        for folder in sorted(folders, reverse=True):  # folders inside another one are before it
            if with_folders and folder and not self.has_link(folder):
                with contextlib.suppress(OSError):  # it is not empty
                    os.rmdir(self.local_path(folder))
            with contextlib.suppress(FileMissingError), _Refusals(folder):
                fsync_folder(self.local_path(folder))

    def has_link(self, path: str) -> bool:
        names = path.split("/")
        return any(os.path.islink(os.path.join(self.root, *names[:count])) for count in range(1, len(names) + 1))

    def _leads_inside(self, entry: os.DirEntry) -> bool:
        """Return True for a link to a folder of this root, or above it. Such folders are listed under their own names.
        To follow the link would list them twice, or never end."""
        if not entry.is_symlink():
            return False
        target, root = os.path.realpath(entry.path) + os.sep, os.path.realpath(self.root) + os.sep
        return target.startswith(root) or root.startswith(target)

    @contextlib.contextmanager
    def _temporary(self, path: str) -> Iterator[tuple[BinaryIO, str]]:
        """Yield a temporary file next to `path`. It is deleted at the end unless it was renamed."""
        folder = os.path.dirname(self.local_path(path))
        temporary = os.path.join(folder, TEMPORARY_PREFIX + uuid.uuid4().hex)
        with _Refusals(path):
            _make_folders(folder, self.root)
            file = open(temporary, "wb")  # noqa: SIM115 - closed below, before its name is removed
        try:
            yield file, temporary
        finally:
            with contextlib.suppress(OSError):  # all that counts was flushed, or its error is already raised
                file.close()
            with contextlib.suppress(OSError):  # a file that stays is hidden, and is never read
                os.unlink(temporary)


def _make_folders(folder: str, root: str) -> None:
    """Create folders so that they survive a crash: each one's parent is flushed, up to the root's. So is that of a
    folder that exists already, once per process, because its creator may have died before it was durable."""
    fresh = []
    while folder not in _durable_folders or not os.path.isdir(folder):
        fresh.append(folder)
        if (folder == root or not folder.startswith(root + os.sep)) and os.path.isdir(folder):
            break
        folder = os.path.dirname(folder)
    for path in reversed(fresh):
        is_made = False
        try:
            os.mkdir(path)
            is_made = True
        except FileExistsError:
            if not os.path.isdir(path):
                message = f"{path}: a folder belongs here, and a file is in its place, or a link that leads nowhere"
                raise StorageError(f"{message}; move it away") from None
        durable = [path] if is_made else [path, *_neighbours(path)]
        try:
            fsync_folder(os.path.dirname(path))
        except PermissionError:  # a folder of another program, which also created `path`
            if is_made:
                raise
            durable = [path]
        if len(_durable_folders) + len(durable) > _DURABLE_FOLDERS_MAX:
            _durable_folders.clear()
        _durable_folders.update(durable)


def _neighbours(folder: str) -> list[str]:
    """Return some existing folders next to one: the flush of its name flushes theirs, too."""
    with contextlib.suppress(OSError), os.scandir(os.path.dirname(folder)) as entries:
        return [entry.path for entry in islice(entries, _NEIGHBOURS_MAX) if entry.is_dir(follow_symlinks=False)]
    return []


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_all(flushes: Sequence[tuple[str, Callable[[], None]]]) -> None:
    """Flush files or folders, each with the path for its error; many by threads, whose flushes the disk does
    together."""

    def flush(share: Sequence[tuple[str, Callable[[], None]]]) -> None:
        for path, one in share:
            with _Refusals(path):
                one()

    # One share per thread: passing each flush to a pool takes as long as some flushes.
    threads = 0 if len(flushes) <= _FLUSHES_ALONE else _FLUSH_THREADS
    shares = [flushes[first :: threads or 1] for first in range(threads or 1)]
    list(prefetched(flush, shares, threads, "skipstone-flush"))


def _read_at(descriptor: int, offset: int, length: int) -> bytes:
    if offset < 0 or length <= 0:
        return b""
    data = os.pread(descriptor, length, offset)
    while len(data) < length:  # a signal, or a file larger than one read may return
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


class _Refusals:
    """Convert errors of the operating system to Skipstone errors. This is a context manager and not a generator because
    a small commit enters two dozen."""

    __slots__ = ("path",)

    def __init__(self, path: str):
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, SkipstoneError):
            return
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise FileMissingError(f"{self.path}: no such file") from error
        if isinstance(error, OSError):
            raise StorageError(f"{self.path}: {error.strerror or error}") from error
        if isinstance(error, ValueError):  # a NUL, or characters that the file system's encoding lacks
            raise UnreachableError(f"{self.path!a}: no file has such a name ({error})") from error
