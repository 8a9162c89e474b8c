"""A proxy before a real HTTP server with the faults of a network and of a busy store.

    busy        503 SlowDown, and nothing was done
    reset       the connection is reset before the request was done
    lost        the request was done, and the connection is reset
    failed      the request was done, and the answer is 500
    hanging     the request was done, and no answer comes for `HANG_S`
    short       the body ends before it should, with the connection
    slow        the body comes in small parts, some milliseconds apart

running(port, seed)     context: a Proxy before a server of this machine; `spoil(kinds, rate)` begins, `heal()` ends it
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

FAULTS = ("busy", "reset", "lost", "failed", "hanging", "short", "slow")
HANG_S = 3.0  # longer than the client waits
_SLOW_PARTS, _SLOW_S = 20, 0.005
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate</Message></Error>"
_FAILED = b"<Error><Code>InternalError</Code><Message>We encountered an internal error</Message></Error>"


class Proxy:
    """`port` is where it listens. `faults` counts those that were met, by their kind."""

    def __init__(self, target: int, seed: int):
        self.target, self.port = target, 0
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._choose: Callable[[str], str | None] = lambda method: None

    def spoil(self, kinds: Sequence[str], rate: float) -> None:
        """From now on each request meets a fault of these kinds, at random."""
        self._choose = lambda method: self._random.choice(kinds) if self._random.random() < rate else None

    def spoil_in_bursts(self, kinds: Sequence[str], length: int, distance: int) -> None:
        """From now on `length` requests in a row meet a fault, then `distance` requests meet none."""
        start = self.requests + self._random.randrange(distance)
        count = length + distance

        def choose(method: str) -> str | None:
            return self._random.choice(kinds) if (self.requests - start) % count < length else None

        self._choose = choose

    def spoil_one(self, kind: str, method: str, path_part: str) -> None:
        """The next request of a method to a path that contains a text meets a fault."""
        waiting = [kind]
        self._choose = lambda line: (
            waiting.pop() if waiting and line.startswith(f"{method} ") and path_part in line else None
        )

    def heal(self) -> None:
        self._choose = lambda method: None

    def fault_of(self, line: str) -> str | None:
        """The fault that a request meets; it is given by its method and its path."""
        with self._lock:
            self.requests += 1
            fault = self._choose(line)
            if fault is not None:
                self.faults[fault] += 1
            return fault


@contextlib.contextmanager
def running(target: int, seed: int = 0) -> Iterator[Proxy]:
    proxy = Proxy(target, seed)

    class Handler(_Handler):
        def setup(self) -> None:
            super().setup()
            self.proxy = proxy
            self.server_side = http.client.HTTPConnection("127.0.0.1", target, timeout=30)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy
    server_side: http.client.HTTPConnection

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.fault_of(f"{self.command} {self.path}")
        if fault == "busy":
            self._answer(503, [], _BUSY)
        elif fault == "reset":
            self._reset()
        else:
            self._forward(body, fault)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass

    def _forward(self, body: bytes, fault: str | None) -> None:
        status, headers, found = self._asked(body)
        if fault == "hanging":
            time.sleep(HANG_S)
        if fault in ("lost", "hanging"):
            self._reset()
        elif fault == "failed":
            self._answer(500, [], _FAILED)
        elif fault == "short" and len(found) > 1:
            self._answer(status, headers, found, sent=len(found) // 2)
            self._reset()
        else:
            self._answer(status, headers, found, is_slow=fault == "slow")

    def _asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """The answer of the server to the unchanged, signed request."""
        self.server_side.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            self.server_side.putheader(name, value)
        self.server_side.endheaders(body or None)
        answer = self.server_side.getresponse()
        return answer.status, answer.getheaders(), answer.read()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, sent: int | None = None, is_slow: bool = False
    ) -> None:
        self.send_response_only(status)
        is_head = self.command == "HEAD"
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", *(() if is_head else ("content-length",))):
                self.send_header(name, value)
        if not is_head:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        parts = [body[:sent]]
        if is_slow:
            step = len(body) // _SLOW_PARTS + 1
            parts = [body[i : i + step] for i in range(0, len(body), step)]
        for part in parts if not is_head else ():
            self.wfile.write(part)
            if is_slow:
                self.wfile.flush()
                time.sleep(_SLOW_S)

    def _reset(self) -> None:
        """Close the connection with a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a side closed the connection
            super().handle()

    def finish(self) -> None:
        self.server_side.close()
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: object) -> None:
        """Nothing."""
