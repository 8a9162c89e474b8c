"""Every module of the package, loaded before processes are forked: each then begins without a second
of imports. What a process loads by itself is tested in tests/house."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.context import BaseContext
from pathlib import Path

ROOMS = ("base", "hfile_like", "bloom", "engine", "spark_adapter")
LIBRARIES = ("duckdb", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet")


def load_all(*others: str) -> None:
    """Load the package, what it imports and `others`, without starting a thread; a library that is not installed is
    left out, and what needs it."""
    import skipstone

    rooms = [importlib.import_module(f"skipstone.{room}") for room in ROOMS]
    modules = [module.name for room in rooms for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    for name in (skipstone.__name__, *LIBRARIES, *modules, *others):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def processes_apart() -> BaseContext:
    """Return the context of processes that share no memory, thread or lock with this one."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["all_loaded"])
    return context


def run_code(
    code: str, *arguments: object, text: str = "", environment: Mapping[str, str] | None = None, timeout_s: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run `python -c code *arguments`, with `text` as its standard input, in a new process that begins with the
    modules loaded. What a module does at its import, as to read a variable, is done before."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(text)
        told = (code, list(map(str, arguments)), dict(environment or os.environ), list(map(str, streams)))
        process = processes_apart().Process(target=_run, args=told)
        process.start()
        process.join(timeout_s)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(code, timeout_s)
        return subprocess.CompletedProcess(code, process.exitcode, *(path.read_text() for path in streams[1:]))


def _run(code: str, arguments: list[str], environment: dict[str, str], streams: list[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.stdin, sys.argv = os.fdopen(0), ["-c", *arguments]
    exec(code, {"__name__": "__main__"})
