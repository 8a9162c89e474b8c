"""The HTTP side: requests, errors of the protocol, tokens and limits. Whatever is not listed in `_ENDPOINTS` is refused.

Errors name tables and their files, and nothing else of the machine.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..errors import InvalidArgumentError, NotATableError, NotReadableError, PredicateError, SchemaError
from ..errors import SkipstoneError, StorageError
from .catalog import Catalog, Name, ServedTable
from .plans import PlanRequest, UnsupportedError
from .presented import PLANNING

BODY_BYTES_MAX = 1 << 20
BODY_SECONDS_MAX = 30.0
REQUESTS_MAX = 64  # that are answered or wait
WORKERS = 8  # requests that are answered at the same time
_SEPARATOR = "\x1f"
_NAMESPACE, _TABLE = "/namespaces/{namespace}", "/namespaces/{namespace}/tables/{table}"
_ENDPOINTS = (
    *("GET /namespaces", f"GET {_NAMESPACE}", f"HEAD {_NAMESPACE}", f"GET {_NAMESPACE}/tables"),
    *(f"GET {_TABLE}", f"HEAD {_TABLE}", f"POST {_TABLE}/plan"),
)
_KINDS = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NotFoundException",
    406: "UnsupportedOperationException",
    500: "InternalServerError",
    503: "ServiceUnavailableException",
}
_STATUSES: tuple[tuple[type[SkipstoneError], int], ...] = (  # the first that fits counts
    *((UnsupportedError, 406), (NotReadableError, 406), (SchemaError, 406)),
    *((InvalidArgumentError, 400), (PredicateError, 400), (NotATableError, 404), (StorageError, 503)),
)
_log = logging.getLogger("skipstone.serve")
Work = Callable[[Request], Awaitable[dict[str, Any] | None]]


class RefusalError(Exception):
    """A request that is refused: status, message, and the protocol's type of the error."""

    def __init__(self, status: int, message: str, kind: str | None = None):
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind or _KINDS.get(status, _KINDS[400])


class Server:
    """The application.

    Args:
        catalog: the tables.
        tokens: a request must have one of these, unless there are none.
        hosts: the names by which requests may address the server, unless there are none. Otherwise a web page could
            send requests to a server on this machine under a name of its own.
    """

    def __init__(self, catalog: Catalog, tokens: tuple[str, ...] = (), hosts: tuple[str, ...] = ()):
        self._catalog, self._tokens, self._hosts = catalog, [token.encode() for token in tokens], hosts
        self._active, self._workers = 0, asyncio.Semaphore(WORKERS)
        routes = {
            "/v1/config": self._config,
            "/v1/namespaces": self._namespaces,
            f"/v1{_NAMESPACE}": self._namespace,
            f"/v1{_NAMESPACE}/tables": self._tables,
            f"/v1{_TABLE}": self._load,
        }
        self.app = Starlette(
            routes=[
                *(Route(path, self._answering(work)) for path, work in routes.items()),
                Route(f"/v1{_TABLE}/plan", self._answering(self._plan), methods=["POST"]),
                Route("/{path:path}", self._answering(self._refuse), methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
            ]
        )

    def _answering(self, work: Work) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint: checks, then work, then the answer or the error."""

        async def answer(request: Request) -> Response:
            self._active += 1
            try:
                self._check(request)
                result = await work(request)
                # In a thread, because it may be long, and in ASCII, because a filter that is returned may be odd.
                text = None if result is None else await run_in_threadpool(json.dumps, result)
                return Response(text, 204 if text is None else 200, media_type="application/json")
            except RefusalError as error:
                refusal = error
            except SkipstoneError as error:
                refusal = RefusalError(next((s for kind, s in _STATUSES if isinstance(error, kind)), 500), str(error))
            except Exception:  # the client gets an answer in any case, and nothing of what is inside
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
        are_equal = [hmac.compare_digest(given, one) for one in self._tokens]  # all, so that the time tells nothing
        if self._tokens and not (scheme.lower() == "bearer" and any(are_equal)):
            raise RefusalError(401, "the request has none of the server's tokens")

    async def _working(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        async with self._workers:
            return await run_in_threadpool(work)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _config(self, request: Request) -> dict[str, Any]:
        endpoints = [one.replace(" ", " /v1/{prefix}") for one in _ENDPOINTS]
        return {"defaults": dict(PLANNING), "overrides": {}, "endpoints": endpoints}

    async def _namespaces(self, request: Request) -> dict[str, Any]:
        parent = request.query_params.get("parent")
        above = self._checked_namespace(parent) if parent else ()
        below = [name for name in self._catalog.namespaces if name[:-1] == above]
        return {"namespaces": [list(name) for name in sorted(below)]}

    async def _namespace(self, request: Request) -> dict[str, Any] | None:
        name = self._checked_namespace(request.path_params["namespace"])
        return None if request.method == "HEAD" else {"namespace": list(name), "properties": {}}

    async def _tables(self, request: Request) -> dict[str, Any]:
        name = self._checked_namespace(request.path_params["namespace"])
        tables = sorted(table for table in self._catalog.tables if table[:-1] == name)
        return {"identifiers": [{"namespace": list(table[:-1]), "name": table[-1]} for table in tables]}

    async def _load(self, request: Request) -> dict[str, Any] | None:
        table = self._table_of(request)
        return None if request.method == "HEAD" else await self._working(table.load)

    async def _plan(self, request: Request) -> dict[str, Any]:
        table, body = self._table_of(request), _parsed(await _body_of(request))
        plan = PlanRequest.of(body, is_raw=request.headers.get("x-client-version", "").startswith("PyIceberg"))
        return await self._working(lambda: table.plan(plan))

    async def _refuse(self, request: Request) -> None:
        if request.method in ("GET", "HEAD"):
            raise RefusalError(404, "no such path here")
        raise RefusalError(406, "this catalog is read-only")

    def _checked_namespace(self, text: str) -> Name:
        name = tuple(text.split(_SEPARATOR))
        if name not in self._catalog.namespaces:
            raise RefusalError(404, f"no namespace {'.'.join(name)[:200]!r}", "NoSuchNamespaceException")
        return name

    def _table_of(self, request: Request) -> ServedTable:
        name = (*request.path_params["namespace"].split(_SEPARATOR), request.path_params["table"])
        if name not in self._catalog.tables:
            raise RefusalError(404, f"no table {'.'.join(name)[:200]!r}", "NoSuchTableException")
        return self._catalog.tables[name]


async def _body_of(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise RefusalError(413, f"a body has at most {BODY_BYTES_MAX:,} bytes")
    except TimeoutError:
        raise RefusalError(408, "the body did not arrive in time") from None
    return bytes(body)


def _parsed(body: bytes) -> object:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise InvalidArgumentError("the body is no JSON, or is nested too deeply") from None
