"""An object store in memory with faults: a client of obstore, as `ObjectStorage` uses it.

It answers like S3, with obstore's errors and messages. At a chosen call it has a fault:

    busy       503 SlowDown: nothing was done
    lost       the request was done, and the answer was lost
    late       a put raises an error now, and is done later
    conflict   409 on a conditional put: two concurrent ones, neither was done
    short      a read whose body ends before it should
    denied     403

Twin(objects)       a bucket; `fault_at(kind, call, lasting)` plans a fault, `fault_from(kind, name, part)` one that
                    lasts; `calls` counts, and `faults` those met
twin_stores(...)    context: every bucket that is opened is a Twin of these, and pauses take no time
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import obstore.exceptions as known
import pytest
from skipstone.engine.storage import object_client, object_store

FAULTS = ("busy", "lost", "late", "conflict", "short")
_etags = itertools.count(1)


@dataclass(frozen=True)
class Stored:
    data: bytes
    etag: str
    modified: dt.datetime


class Result:
    """What `get` returns."""

    def __init__(self, meta: dict, data: bytes):
        self.meta, self._data = meta, data

    def bytes(self) -> bytes:
        return self._data


class Twin:
    """One bucket. Threads may share it."""

    def __init__(self, objects: dict[str, Stored] | None = None):
        self.objects = dict(objects or {})
        self.calls = self.faults = 0
        self.log: list[tuple[str, str]] = []
        self._fault: tuple[str, int, bool] | None = None
        self._fault_from: tuple[str, str, str] | None = None
        self._late: list[Callable[[], Any]] = []
        self._lock = threading.RLock()

    def fault_at(self, kind: str, call: int, lasting: bool = False) -> None:
        """Call number `call` (1 and up, counted from now) meets a fault; all later calls too if it is lasting."""
        self.calls, self._fault, self.faults = 0, (kind, call, lasting), 0
        self.log.clear()

    def fault_from(self, kind: str, name: str, part: str) -> None:
        """The first call `name` to a path that contains `part`, and all calls after it, meet a fault. (The number of
        calls before it differs from run to run, because threads read ahead.)"""
        self._fault, self._fault_from = None, (kind, name, part)

    def heal(self) -> None:
        """No more faults."""
        self._fault = self._fault_from = None

    def settle(self) -> None:
        """No more faults, and late puts are done."""
        self.heal()
        with self._lock:
            for arrive in self._late:
                with contextlib.suppress(Exception):
                    arrive()
            self._late.clear()

    # -- what obstore's stores do -------------------------------------------------------------------------------------

    def head(self, path: str) -> dict:
        return self._call("head", path, lambda: self._meta(path))

    def get(self, path: str, *, options: dict | None = None) -> Result:
        def get() -> Result:
            meta = self._meta(path)
            start, end = (options or {}).get("range", (0, meta["size"]))
            if start >= max(meta["size"], 1):
                raise known.GenericError(_text("GET", path, 416, "Range Not Satisfiable", "InvalidRange"))
            return Result(meta, self.objects[path].data[start:end])

        return self._call("get", path, get)

    def put(self, path: str, file: Any, *, mode: str | dict | None = None, **_: Any) -> dict:
        data = bytes(file) if isinstance(file, (bytes, bytearray, memoryview)) else file.read()

        def put() -> dict:
            if mode == "create" and path in self.objects:
                raise known.AlreadyExistsError(_text("PUT", path, 412, "Precondition Failed", "PreconditionFailed"))
            if isinstance(mode, dict) and (path not in self.objects or self.objects[path].etag != mode["e_tag"]):
                raise known.PreconditionError(_text("PUT", path, 412, "Precondition Failed", "PreconditionFailed"))
            self.objects[path] = Stored(data, f'"{next(_etags):032x}"', dt.datetime.now(dt.UTC))
            return {"e_tag": self.objects[path].etag, "version": None}

        return self._call("create" if mode == "create" else "put", path, put)

    def delete(self, path: str) -> None:
        return self._call("delete", path, lambda: self.objects.pop(path, None) and None)

    def list(self, prefix: str | None = None) -> Iterator[list[dict]]:
        def found() -> list[dict]:
            below = f"{prefix}/" if prefix else ""
            return [self._meta(path) for path in sorted(self.objects) if path.startswith(below)]

        return iter([self._call("list", prefix or "", found)])

    def list_with_delimiter(self, prefix: str | None = None) -> dict:
        def found() -> dict:
            below = f"{prefix}/" if prefix else ""
            names = [path for path in self.objects if path.startswith(below)]
            folders = {below + path[len(below) :].split("/")[0] for path in names if "/" in path[len(below) :]}
            files = [self._meta(path) for path in sorted(names) if "/" not in path[len(below) :]]
            return {"common_prefixes": sorted(folders), "objects": files}

        return self._call("list", prefix or "", found)

    # -- how it goes wrong --------------------------------------------------------------------------------------------

    def _call(self, name: str, path: str, do: Callable[[], Any]) -> Any:
        with self._lock:
            self.calls += 1
            self.log.append((name, path))
            if self._fault_from is not None and name == self._fault_from[1] and self._fault_from[2] in path:
                self.fault_at(self._fault_from[0], 1, lasting=True)
                self.calls, self._fault_from = 1, None
            kind = self._due(name)
            if kind is None:
                return do()
            self.faults += 1
            if kind == "short":
                found = do()
                return Result(found.meta, found.bytes()[: len(found.bytes()) // 2])
            if kind == "lost":
                do()
            elif kind == "late":
                self._late.append(do)
            elif kind == "conflict":
                raise known.AlreadyExistsError(_text("PUT", path, 409, "Conflict", "ConditionalRequestConflict"))
            elif kind == "denied":
                raise known.PermissionDeniedError(_text("GET", path, 403, "Forbidden", "AccessDenied"))
            if kind == "busy":
                raise known.GenericError(_text(name.upper(), path, 503, "Service Unavailable", "SlowDown"))
            raise known.GenericError(
                f"Generic S3 error: Error performing {name} {path} in 1s - HTTP error: error sending"
            )

    def _due(self, name: str) -> str | None:
        """The fault that this call meets; one that its kind of call cannot have, it does not."""
        if self._fault is None:
            return None
        kind, at, lasting = self._fault
        if self.calls != at and not (lasting and self.calls > at):
            return None
        fits = {"late": name in ("put", "create"), "conflict": name == "create", "short": name == "get"}
        return kind if fits.get(kind, True) else None

    def _meta(self, path: str) -> dict:
        if path not in self.objects:
            raise FileNotFoundError(_text("GET", path, 404, "Not Found", "NoSuchKey"))
        one = self.objects[path]
        return {"path": path, "size": len(one.data), "e_tag": one.etag, "last_modified": one.modified, "version": None}


def _text(method: str, path: str, status: int, reason: str, code: str) -> str:
    body = f"<Error><Code>{code}</Code><Message>{reason}, an error of the twin</Message><Key>{path}</Key></Error>"
    return (
        f"Error performing {method} https://twin/{path}?X-Amz-Signature=0123456789abcdef in 1ms - Server returned "
        f"non-2xx status code: {status} {reason}: {body}\n\nDebug source: secret-in-the-debug-part"
    )


@contextlib.contextmanager
def twin_stores(**buckets: Twin) -> Iterator[None]:
    """Inside the block, a bucket that is opened is one of these twins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_store, "connect", lambda place, options: buckets[place.bucket])
        patch.setattr(object_client, "pause", lambda attempt: None)
        yield
