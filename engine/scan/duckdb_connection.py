"""The private DuckDB connection that reads files: one per process.

A connection does not survive a fork: a child that uses the parent's hangs, and one that closes it dies, even at exit.
So each process opens its own, and a child keeps a reference to every object of the parent's that it never gives back.

The connection never spills to disk. A query that needs more memory than the limit fails, and pyarrow reads its files.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ...base.forks import no_fork

THREADS = min(8, os.cpu_count() or 1)
_SETTINGS = {
    "threads": str(THREADS),
    "memory_limit": "2GB",
    "temp_directory": "",
    "TimeZone": "UTC",
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "enable_external_file_cache": "false",
    # It draws conclusions from footer statistics, which may be wrong, also about a condition that is `guarded`. The
    # other optimizers that read statistics push conditions into the scan. Our joins are of row numbers alone.
    "disabled_optimizers": "statistics_propagation",
}

_NAN_SETTING = "parquet_can_have_nan"  # footer statistics without NaN counts do not exclude NaN; not in DuckDB 1

_lock = threading.Lock()
_connection: Any = None
_query_connection: Any = None
_nan_rows: str | None = None
_open_objects: list[Any] = []  # the connection and its cursors
_free_cursors: list[Any] = []


@contextlib.contextmanager
def cursor() -> Iterator[Any]:
    """A cursor of the process's connection, which one thread uses."""
    process = os.getpid()
    with no_fork():
        try:
            opened = _free_cursors.pop()
        except IndexError:
            opened = _connected().cursor()
            _open_objects.append(opened)
            opened.execute("SET enable_progress_bar = false").fetchall()  # which no global setting turns off
        try:
            yield opened
        except BaseException as error:
            if process == os.getpid():
                _open_objects.remove(opened)
                opened.close()
            if isinstance(error, RuntimeError) and str(error) == "Query interrupted":  # DuckDB catches the signal
                raise KeyboardInterrupt from error
            raise
        if process == os.getpid():
            _free_cursors.append(opened)


def to_arrow(opened: Any, text: str) -> pa.Table:
    """The rows of a query on a cursor. Ctrl-C raises KeyboardInterrupt.

    DuckDB misses some signals while its own threads work. So the main thread, which gets the signals, only waits.
    """
    if threading.current_thread() is not threading.main_thread():
        return opened.sql(text).to_arrow_table()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: opened.sql(text).to_arrow_table())
        try:
            return running.result()
        except KeyboardInterrupt:
            opened.interrupt()
            wait([running])
            raise


def _connected() -> Any:
    global _connection
    with _lock:
        if _connection is None:
            connection = duckdb.connect(":memory:")
            for name, value in _SETTINGS.items():
                connection.execute(f"SET GLOBAL {name} = '{value}'")
            with contextlib.suppress(duckdb.CatalogException):
                connection.execute(f"SET GLOBAL {_NAN_SETTING} = true")
            _open_objects.append(connection)
            _connection = connection
        return _connection


def query_connection() -> Any:
    """A connection for whole queries, with DuckDB's own settings, in UTC. It may spill into a temporary folder."""
    global _query_connection
    with _lock:
        if _query_connection is None:
            folder = tempfile.TemporaryDirectory(prefix="skipstone-", ignore_cleanup_errors=True)
            connection = duckdb.connect(":memory:", config={"temp_directory": folder.name})
            connection.execute("SET GLOBAL TimeZone = 'UTC'")
            _open_objects.extend([connection, folder])
            _query_connection = connection
        return _query_connection.cursor()


def is_supported() -> bool:
    """True for DuckDB 2.0 and later. Older ones return other values of some types and lack columns that are used."""
    return int(duckdb.__version__.split(".")[0]) >= 2


def guarded(condition: str) -> str:
    """The same condition on rows, which DuckDB cannot push into the scan: no statistics decide it."""
    return f"(({condition}) OR random() < 0)"


def guarded_key(key: str) -> str:
    """The same key of an order. DuckDB pushes the worst of the first rows so far into the scan of a plain column."""
    return f"CASE WHEN random() < 0 THEN NULL ELSE {key} END"


_CHECKS = {
    "SELECT count(*) FROM read_parquet('{path}') WHERE {f_greater}": 1,
    "SELECT count(*) FROM read_parquet('{path}') WHERE {f_greater} AND k = 2": 1,
    "SELECT count(*) FROM read_parquet('{path}') WHERE {f_greater} AND file_row_number BETWEEN 1 AND 2": 1,
    "SELECT count(*) FROM (SELECT f AS g FROM read_parquet('{path}')) WHERE {g_greater}": 1,
    "SELECT count(*) FROM read_parquet('{path}') WHERE {child_greater}": 1,
    "SELECT count(*) FROM read_parquet('{path}') WHERE {same_not_one}": 1,
    "SELECT count(*) FROM (SELECT same FROM read_parquet('{path}') WHERE k = 2 LIMIT 3) WHERE isnan(same)": 1,
    "SELECT isnan(top)::INT FROM (SELECT top FROM read_parquet('{path}')) ORDER BY {top} DESC NULLS LAST LIMIT 1": 1,
}


def nan_rows() -> str:
    """Return which conditions on floats return rows with NaN in the installed DuckDB: "plain", only "guarded", or none
    (""). Tested once per process."""
    global _nan_rows
    if _nan_rows is None:
        _nan_rows = _tested_nan_rows()
    return _nan_rows


def _tested_nan_rows() -> str:
    nan = float("nan")
    rows: dict[str, list] = {"f": [1.0, nan, 3.0], "same": [1.0, nan, 1.0], "k": [1, 2, 3]}
    rows["s"] = [{"c": value} for value in rows["f"]]
    rows = {name: [*values, *[None] * 3] for name, values in rows.items()}
    rows["top"] = [9.0, 9.0, 9.0, 1.0, nan, 3.0]  # in two row groups, the greater values first
    conditions = {
        "f_greater": '"f" > CAST(5 AS DOUBLE)',
        "g_greater": '"g" > CAST(5 AS DOUBLE)',
        "child_greater": "struct_extract(\"s\", 'c') > CAST(5 AS DOUBLE)",
        "same_not_one": '"same" <> CAST(1 AS DOUBLE)',
    }
    with tempfile.TemporaryDirectory(prefix="skipstone-") as folder, cursor() as opened:
        path = Path(folder) / "nan.parquet"
        pq.write_table(pa.table(rows), path, row_group_size=3)
        name = str(path).replace("'", "''")
        for kind, written, key_text in (("plain", str, str), ("guarded", guarded, guarded_key)):
            texts = {key: written(condition) for key, condition in conditions.items()} | {"top": key_text("top")}
            with contextlib.suppress(duckdb.Error):
                if all(
                    opened.execute(query.format(path=name, **texts)).fetchall() == [(expected,)]
                    for query, expected in _CHECKS.items()
                ):
                    return kind
    return ""


def _keep_parents() -> None:
    """In a child: leave the parent's objects alone for as long as the process runs."""
    global _connection, _query_connection, _lock
    for kept in _open_objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    _open_objects.clear()
    _free_cursors.clear()
    _connection, _query_connection, _lock = None, None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_parents)
