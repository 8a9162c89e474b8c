"""The HTTP side: requests, errors of the protocol (which name only tables and their files), tokens and limits."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .. import errors
from .catalog import Name, ServedTable
from .plans import checked_request
from .presented import PLANNING

BODY_BYTES_MAX, BODY_SECONDS_MAX = 1 << 20, 30.0
REQUESTS_MAX, WORKERS = 64, 8  # requests that are accepted, and that are processed, at a time
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_SEPARATOR = "\x1f"
_NAMESPACE, _TABLE = "/namespaces/{namespace}", "/namespaces/{namespace}/tables/{table}"
_KINDS = {
    401: "NotAuthorized",
    403: "Forbidden",
    404: "NotFound",
    406: "UnsupportedOperation",
    503: "ServiceUnavailable",
}
_ERRORS: list[tuple[Any, int]] = [(errors.NotReadableError, 406), (errors.SchemaError, 406), (errors.StorageError, 503)]
_ERRORS += [(errors.InvalidArgumentError, 400), (errors.PredicateError, 400), (errors.NotATableError, 404)]
_log = logging.getLogger("skipstone.serve")


class RefusalError(Exception):
    """A request that is refused: status, message, and the protocol's type of the error."""

    def __init__(self, status: int, message: str, kind: str | None = None):
        super().__init__(message)
        self.status, self.message, self.kind = status, message, f"{kind or _KINDS.get(status, 'BadRequest')}Exception"


class Server:
    """The application. A request must have one of the tokens and address one of the hosts, if there are any: otherwise
    a web page could send requests to a server on this machine under its own name."""

    def __init__(self, tables: Mapping[Name, ServedTable], tokens: tuple[str, ...] = (), hosts: tuple[str, ...] = ()):
        self._tables_by_name, self._tokens, self._hosts = tables, [token.encode() for token in tokens], hosts
        self._namespaces_served = {name[:depth] for name in tables for depth in range(1, len(name))}
        self._active, self._workers = 0, asyncio.Semaphore(WORKERS)
        reads = {"/namespaces": self._namespaces, _NAMESPACE: self._namespace, f"{_NAMESPACE}/tables": self._tables}
        reads[_TABLE] = self._load
        self._endpoints = [f"GET /v1/{{prefix}}{path}" for path in reads] + [f"POST /v1/{{prefix}}{_TABLE}/plan"]
        self._endpoints += [f"HEAD /v1/{{prefix}}{path}" for path in (_NAMESPACE, _TABLE)]
        routes = [Route(f"/v1{path}", self._answering(work)) for path, work in reads.items()]
        routes += [Route("/v1/config", self._answering(self._config))]
        routes += [Route(f"/v1{_TABLE}/plan", self._answering(self._plan), methods=["POST"])]
        routes += [Route("/{path:path}", self._answering(self._refuse), methods=_METHODS)]
        self.app = Starlette(routes=routes)

    def _answering(self, work: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint: it checks, does the work, then sends the answer or the error."""

        async def answer(request: Request) -> Response:
            self._active += 1
            try:
                self._check(request)
                result = await work(request)
                # In a thread, because it may take long, and in ASCII, because a returned filter may be malformed.
                text = None if result is None else await run_in_threadpool(json.dumps, result)
                return Response(text, 204 if text is None else 200, media_type="application/json")
            except RefusalError as error:
                refusal = error
            except errors.SkipstoneError as error:
                status = next((code for kind, code in _ERRORS if isinstance(error, kind)), 500)
                refusal = RefusalError(status, str(error))
            except Exception:  # the client always gets an answer, without internal details
                _log.exception("%s %s", request.method, request.url.path)
                refusal = RefusalError(500, "the server failed; its log has the reason")
            finally:
                self._active -= 1
            headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(refusal.status)
            error_of = {"message": refusal.message, "type": refusal.kind, "code": refusal.status}
            return JSONResponse({"error": error_of}, refusal.status, headers)

        return answer

    def _check(self, request: Request) -> None:
        if self._active > REQUESTS_MAX:
            raise RefusalError(503, f"more than {REQUESTS_MAX} requests at a time")
        if self._hosts and request.url.hostname not in self._hosts:
            raise RefusalError(403, "no such host here; serve with a token file to allow any")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "replace")
        are_equal = [hmac.compare_digest(given, one) for one in self._tokens]  # all, so that the time reveals nothing
        if self._tokens and not (scheme.lower() == "bearer" and any(are_equal)):
            raise RefusalError(401, "the request has none of the server's tokens")

    async def _config(self, request: Request) -> dict[str, Any]:
        return {"defaults": PLANNING, "overrides": {}, "endpoints": self._endpoints}

    async def _namespaces(self, request: Request) -> dict[str, Any]:
        parent = request.query_params.get("parent")
        above = self._checked_namespace(parent) if parent else ()
        return {"namespaces": sorted(list(name) for name in self._namespaces_served if name[:-1] == above)}

    async def _namespace(self, request: Request) -> dict[str, Any] | None:
        name = self._checked_namespace(request.path_params["namespace"])
        return None if request.method == "HEAD" else {"namespace": list(name), "properties": {}}

    async def _tables(self, request: Request) -> dict[str, Any]:
        name = self._checked_namespace(request.path_params["namespace"])
        tables = sorted(table[-1] for table in self._tables_by_name if table[:-1] == name)
        return {"identifiers": [{"namespace": list(name), "name": table} for table in tables]}

    async def _load(self, request: Request) -> dict[str, Any] | None:
        table = self._table_of(request)
        async with self._workers:
            return None if request.method == "HEAD" else await run_in_threadpool(table.load)

    async def _plan(self, request: Request) -> dict[str, Any]:
        table, body = self._table_of(request), checked_request(await _body_of(request))
        is_pyiceberg = request.headers.get("x-client-version", "").startswith("PyIceberg")
        async with self._workers:
            return await run_in_threadpool(table.plan, body, is_raw=is_pyiceberg)

    async def _refuse(self, request: Request) -> None:
        if request.method in ("GET", "HEAD"):
            raise RefusalError(404, "no such path here")
        raise RefusalError(406, "this catalog is read-only")

    def _checked_namespace(self, text: str) -> Name:
        name = tuple(text.split(_SEPARATOR))
        if name not in self._namespaces_served:
            raise RefusalError(404, f"no namespace {'.'.join(name)[:200]!r}", "NoSuchNamespace")
        return name

    def _table_of(self, request: Request) -> ServedTable:
        name = (*request.path_params["namespace"].split(_SEPARATOR), request.path_params["table"])
        if name not in self._tables_by_name:
            raise RefusalError(404, f"no table {'.'.join(name)[:200]!r}", "NoSuchTable")
        return self._tables_by_name[name]


async def _body_of(request: Request) -> Any:
    """Return the JSON in the body of a request."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise RefusalError(413, f"a body has at most {BODY_BYTES_MAX:,} bytes")
        return json.loads(bytes(body))
    except TimeoutError:
        raise RefusalError(408, "the body did not arrive in time") from None
    except (ValueError, RecursionError):
        raise RefusalError(400, "the body is no JSON, or is nested too deeply") from None
