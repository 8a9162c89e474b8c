"""A prefix of an object store: S3 and its compatibles, Google Cloud Storage, Azure.

No object is changed in place, so a commit needs only three guarantees: an object is whole or absent, a new one is
visible to all clients immediately, and a conditional put (`If-None-Match: *`) has one winner. S3 itself, GCS, Azure,
MinIO, R2 and SeaweedFS guarantee this.

Every call is retried, a bounded number of times, if the store or the network fails. A put that returned an error may
still have succeeded, or may succeed later. `put_if_absent` checks until it is certain, and raises `UncertainPutError`
if it cannot be.

An object's identity is its size and etag. Its time is rounded to seconds, because listings and answers about one object
have different fractions of a second.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from ...errors import NotReadableError, SkipstoneError, StorageError
from . import object_client
from .interface import (
    Entry,
    Range,
    RangeFile,
    UncertainPutError,
    UnreachableError,
    check_in_index,
    check_inside,
    check_size,
    merged_ranges,
    parts_of,
)
from .object_client import Failure, connect, failure_of, refusal
from .places import Place, StorageOptions, is_uri, place_of, tidied
from .threads import Threads, prefetched

GAP_BYTES = 256 * 1024  # a request costs more than reading so many bytes
PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
_PARTS_MAX = 9_000  # S3 accepts 10,000
_PUTS_AT_ONCE = 16
_SPOOL_BYTES = 1 << 20  # a file that is larger is written to the local disk until it is complete
_READERS_MAX = 8

R = TypeVar("R")
_process: int | None = None  # the first that sent a request: the threads that obstore started exist only in it


class ObjectStorage:
    """The objects below a place. There need not be any before the first write."""

    is_remote = True
    gap_bytes = GAP_BYTES

    def __init__(self, place: Place, options: StorageOptions, *, is_index: bool = False):
        self.place, self.options = place, options
        self._is_index = is_index
        self.uri = place.uri
        self._client = connect(place, options)

    def __repr__(self) -> str:
        return f"ObjectStorage({self.uri!r})"

    # -- reading ------------------------------------------------------------------------------------------------------

    def kind(self) -> str:
        """Return "file" if the root is the name of an object, else "folder": any prefix may be one."""
        if not self.place.key:
            return "folder"
        try:
            self._requested(lambda: self._client.head(self.place.key), self.place.key)
        except FileNotFoundError:
            return "folder"
        return "file"

    def stat(self, path: str) -> Entry:
        key = self._key(path)
        return _entry(path, self._requested(lambda: self._client.head(key), key))

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        return self.read_entry(path, max_bytes)[1]

    def read_entry(self, path: str, max_bytes: int | None = None) -> tuple[Entry, bytes]:
        key = self._key(path)

        def fetch() -> tuple[Entry, bytes]:
            response = self._client.get(key)
            check_size(path, response.meta["size"], max_bytes)
            return _entry(path, response.meta), self._checked(bytes(response.bytes()), response.meta["size"], key)

        return self._requested(fetch, key)

    def read_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        return self.read_pinned(path, ranges, None)

    def read_pinned(self, path: str, ranges: Sequence[Range], pinned: Entry | None) -> list[bytes]:
        """Like `read_ranges`. Raises NotReadableError if the object is not, or no longer, the one that is `pinned`."""
        key = self._key(path)
        merged = merged_ranges(ranges, self.gap_bytes)

        def read(one: Range) -> bytes:
            return self._requested(lambda: self._range(key, path, one, pinned), key)

        if len(merged) < 2:
            parts = [read(one) for one in merged]
        else:
            with Threads(min(len(merged), _READERS_MAX), thread_name_prefix="skipstone-get") as pool:
                parts = list(pool.map(read, merged))
        return parts_of(ranges, merged, parts)

    def open_file(self, entry: Entry) -> RangeFile:
        return RangeFile(entry.size_bytes, lambda ranges: self.read_pinned(entry.path, ranges, entry), entry.path)

    def list_folder(self, path: str, first: str = "") -> tuple[list[Entry], list[str]]:
        key = self._key(path)
        listing = self._requested(lambda: self._client.list_with_delimiter(key or None), key)
        inside = len(key) + 1 if key else 0
        below = f"{path}/" if path else ""
        files = [
            _entry(below + one["path"][inside:], one) for one in listing["objects"] if len(one["path"]) > inside
        ]  # else it is the object that some tools put for the folder itself
        return files, [folder[inside:].rstrip("/") for folder in listing["common_prefixes"]]

    def peek(self, path: str) -> list[str]:
        key = self._key(path)
        page = self._requested(lambda: next(iter(self._client.list(key)), ()), key)
        return [one["path"][len(key) + 1 :] for one in page if len(one["path"]) > len(key) + 1]

    # -- writing ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        # The file is sent when it is complete: then nothing needs to be undone, and a failed upload starts again.
        key = self._key(path)
        file = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, prefix="skipstone-")  # noqa: SIM115 - closed below
        try:
            yield file  # type: ignore[misc]
            self._upload(path, file)
        except SkipstoneError:
            raise
        except OSError as error:
            raise StorageError(f"{self._shown(key)}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):  # its contents are no longer needed
                file.close()

    def put_all(self, files: Mapping[str, bytes]) -> None:
        def put(path: str) -> None:
            with self.create(path) as file:
                file.write(files[path])

        if files:
            list(prefetched(put, list(files), min(len(files), _PUTS_AT_ONCE), "skipstone-put"))

    def put(self, path: str, data: bytes, *, is_durable: bool = True) -> None:
        key = self._key(path)
        self._requested(lambda: self._client.put(key, data, use_multipart=False), key)

    def replace(self, path: str, data: bytes, entry: Entry) -> None:
        key = self._key(path)

        def send() -> None:
            meta = self._client.head(key)
            if _entry(path, meta) == entry:
                version = {"e_tag": meta.get("e_tag"), "version": meta.get("version")}
                self._client.put(key, data, mode=version, use_multipart=False)

        self._requested(send, key)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        key = self._key(path)
        is_certain = True
        for attempt in range(object_client.ATTEMPTS_MAX):
            if attempt:
                object_client.pause(attempt)
            try:
                self._tried(lambda: self._client.put(key, data, mode="create", use_multipart=False), key)
                return True
            except _TakenError:
                try:
                    existing = self.read(path)
                except FileNotFoundError:  # AWS answers 409 to two concurrent puts, and perhaps neither succeeded
                    continue
                except StorageError:
                    if is_certain:
                        raise
                    raise self._uncertain(key) from None
                # After an interrupted try this put may have written the file: no other writer has these bytes.
                return not is_certain and existing == data
            except _PassingError:
                is_certain = False
            except StorageError:
                if is_certain:
                    raise
                raise self._uncertain(key) from None
        if is_certain:
            raise StorageError(f"{self._shown(key)}: the store accepted neither this put nor another; try again later")
        raise self._uncertain(key)

    def delete(self, path: str) -> None:
        check_inside(path)
        key = self._key(path)
        with contextlib.suppress(FileNotFoundError):
            self._requested(lambda: self._client.delete(key), key)

    def settle_deletes(self, paths: Iterable[str], *, with_folders: bool = False) -> None:
        pass

    def has_link(self, path: str) -> bool:
        return False

    def _upload(self, path: str, file: Any) -> None:
        size_bytes, key = file.seek(0, os.SEEK_END), self._key(path)
        file.seek(0)
        if size_bytes <= PART_BYTES:
            # A name is given once. A plain put that is retried may arrive twice, the second time after another process
            # has recorded the etag of the first one.
            if not self.put_if_absent(path, file.read()):
                raise StorageError(f"{self._shown(key)}: it exists, and another program wrote it; names are used once")
            return
        part_bytes = max(PART_BYTES, -(-size_bytes // _PARTS_MAX))

        def send() -> None:
            file.seek(0)
            self._client.put(key, file, use_multipart=True, chunk_size=part_bytes, max_concurrency=_PARTS_AT_ONCE)

        self._requested(send, key)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        """Return the key of a path: relative to the root, or a URI in the same bucket. An index contains no URIs."""
        if self._is_index:
            check_in_index(path)
        if is_uri(path):
            place = place_of(path)
            if place is None or not place.is_beside(self.place):
                raise UnreachableError(
                    f"{path}: is on another storage than {self.uri}, and cannot be reached from there"
                )
            return place.key
        if path.startswith("/"):
            raise UnreachableError(f"{path}: is a local path, and nothing in {self.uri}")
        return tidied(f"{self.place.key}/{path}", path) if path else self.place.key

    def _shown(self, key: str) -> str:
        return Place(self.place.kind, self.place.bucket, self.place.account, key).uri

    def _range(self, key: str, path: str, one: Range, pinned: Entry | None) -> bytes:
        offset, length = one
        if offset < 0:
            return b""
        try:
            response = self._client.get(key, options={"range": (offset, offset + length)})
        except Exception as error:
            if object_client.is_past_the_end(error):
                return b""
            raise
        now = _entry(path, response.meta)
        if pinned is not None and not now.is_same(pinned.size_bytes, pinned.modified_ns, pinned.etag):
            raise NotReadableError(
                f"{path}: overwritten while it was being read", paths=[path], hint="{sync} the table and scan again"
            )
        available = max(0, min(length, response.meta["size"] - offset))
        return self._checked(bytes(response.bytes()), available, key)

    def _checked(self, data: bytes, size_bytes: int, key: str) -> bytes:
        if len(data) != size_bytes:
            raise _PassingError(f"{self._shown(key)}: {len(data):,} of {size_bytes:,} bytes arrived; try again later")
        return data

    def _requested(self, ask: Callable[[], R], key: str) -> R:
        """Return the result of `ask`, retried if that may help. It must do no harm to call it twice."""
        for attempt in range(object_client.ATTEMPTS_MAX - 1):
            try:
                return self._tried(ask, key)
            except (_PassingError, _TakenError):  # S3 also answers "conflict" to concurrent requests that it serializes
                object_client.pause(attempt)
        return self._tried(ask, key)

    def _tried(self, ask: Callable[[], R], key: str) -> R:
        """Return the result of `ask`, or raise a Skipstone error: _PassingError if a retry may help, _TakenError if the
        store reports that the object exists, or that another client is putting it."""
        global _process
        _process = _process or os.getpid()
        if os.getpid() != _process:  # a new client would also wait permanently
            raise StorageError(
                f"{self.uri}: this process was forked from one that uses object stores, whose threads do not exist "
                "in it, so it cannot use them; begin processes by spawn: multiprocessing.get_context('spawn')"
            )
        try:
            return ask()
        except SkipstoneError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):  # the spool's disk
                raise StorageError(f"{self._shown(key)}: {error.strerror or error}") from error
            refused = refusal(error, self._shown(key), self.options)
            kind = {Failure.exists: _TakenError, Failure.passing: _PassingError}.get(failure_of(error))
            # The cause is left out: obstore's errors contain whole requests, and so may show their signatures.
            raise (kind(str(refused)) if kind else refused) from None

    def _uncertain(self, key: str) -> UncertainPutError:
        return UncertainPutError(
            f"{self._shown(key)}: the put was interrupted, and may have succeeded; open the table again and check "
            "before you repeat it"
        )


class _PassingError(StorageError):
    """A failure that may be over at the next try."""


class _TakenError(StorageError):
    """Another writer has the name, or is about to get it."""


def _entry(path: str, meta: Any) -> Entry:
    etag = meta.get("e_tag")
    seconds = int(meta["last_modified"].timestamp())
    return Entry(path, meta["size"], seconds * 1_000_000_000, etag.strip('"') if etag else None)
