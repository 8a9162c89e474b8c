"""A read-only Iceberg REST catalog over indexed tables, which plans scans with their indexes.

catalog.py      the tables: a TOML file, and the state of each table between requests
app.py          HTTP: requests, errors, tokens, limits
presented.py    a version as an Iceberg table; schemas.py: its columns, and the mapping of names
plans.py        from a request to scan tasks; expressions.py: from a filter to a predicate
manifests.py    manifests for clients that plan themselves
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import InvalidArgumentError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def serve(
    config: str | os.PathLike[str] | Mapping[str, Any],
    *,
    host: str = "127.0.0.1",
    port: int = 8181,
    token_file: str | os.PathLike[str] | None = None,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve tables to Iceberg clients until the process is interrupted: `ss.serve({"lake.events": "/data/events"})`.

    Args:
        config: a catalog (docs/serve.md): a TOML file, or a dict of names and paths, or of names and entries.
        host: the address to listen on. Any other than this machine's own needs `token_file`.
        port: the port; 0 for a free one.
        token_file: a file with one token per line. A request must have one of them (`Authorization: Bearer TOKEN`).
        on_start: called with the server's address when it accepts connections.

    Raises InvalidArgumentError for a bad catalog, token file or address, and if the extra `serve` is not installed.
    """
    if host not in _LOOPBACK and token_file is None:
        raise InvalidArgumentError(f"anyone who reaches {host} could read the tables; pass token_file")
    try:
        import uvicorn

        from .app import Server
        from .catalog import read_catalog
    except ImportError as error:
        raise InvalidArgumentError(f"{error.name} is not installed: pip install 'skipstone[serve]'") from error
    tokens = () if token_file is None else _tokens_of(token_file)
    server = Server(read_catalog(config), tokens, () if tokens else _LOOPBACK)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(128)
        except (OSError, OverflowError, TypeError) as error:
            raise InvalidArgumentError(f"{host}:{port}: {error}") from error
        if on_start is not None:
            on_start(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}")
        settings = uvicorn.Config(server.app, log_level="warning", lifespan="off", server_header=False)
        uvicorn.Server(settings).run(sockets=[listening])


def _tokens_of(file: str | os.PathLike[str]) -> tuple[str, ...]:
    try:
        tokens = Path(file).read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"{os.fspath(file)}: the tokens cannot be read ({error})") from error
    if not tokens:
        raise InvalidArgumentError(f"{os.fspath(file)}: has no token; write one per line")
    return tuple(tokens)


class _CallableRoom(ModuleType):
    """A module that is callable: importing a package sets it as an attribute, under the name of its function."""

    __call__ = staticmethod(serve)


sys.modules[__name__].__class__ = _CallableRoom
