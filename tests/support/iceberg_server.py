"""The REST catalog of `skipstone.serve` for tests: in a thread of this process, or in a process that can be killed."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import skipstone as ss
from server_processes import die_with_parent


def served(tables: Mapping[str, Any], **options: Any) -> str:
    """Serve tables until the tests end. Return the address."""
    started: queue.Queue = queue.Queue()

    def run() -> None:
        try:
            ss.serve(tables, port=0, on_start=started.put, **options)
        except BaseException as error:
            started.put(error)
            raise

    threading.Thread(target=run, daemon=True).start()
    uri = started.get(timeout=30)
    if isinstance(uri, BaseException):
        raise uri
    return uri


@contextlib.contextmanager
def serving_process(catalog: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """The command `skipstone serve` in a process: its address, and the process."""
    command = [sys.executable, "-m", "skipstone", "serve", str(catalog), "--port", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
    try:
        assert process.stdout is not None
        yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["uri"], process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def client(uri: str, mode: str = "server", **properties: str) -> Any:
    """A catalog of pyiceberg that lets the server plan, or ("client") reads manifests."""
    from pyiceberg.catalog.rest import RestCatalog

    return RestCatalog("test", uri=uri, **{"scan-planning-mode": mode}, **properties)


def planned_paths(scan: Any) -> list[str]:
    """The names of the files that a scan of pyiceberg reads."""
    return sorted(Path(task.file.file_path).name for task in scan.plan_files())


def sorted_rows(table: pa.Table) -> list[str]:
    """The rows as texts, without their order; NaN equals NaN."""
    return sorted(repr([(name, row[name]) for name in sorted(row)]) for row in table.to_pylist())


def request(uri: str, path: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, Any]:
    """(status, parsed body) of one request. `body`: an object, or bytes as they are."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    method = method or ("GET" if data is None else "POST")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    asked = urllib.request.Request(uri + path, data, headers=named, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=30) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    return status, json.loads(text) if text else None
