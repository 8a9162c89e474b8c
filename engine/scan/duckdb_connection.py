"""The private databases of DuckDB in which files are read and whole queries run.

The one that reads never spills to disk. A query that needs more memory than the limit fails, and pyarrow reads its
files.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...base.arrays import from_numpy
from ..predicates.duckdb_engine import PrivateDatabase
from ..predicates.literals import string_sql

THREADS = min(8, os.cpu_count() or 1)
_SETTINGS = {
    "threads": str(THREADS),
    "memory_limit": "2GB",
    "TimeZone": "UTC",
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "enable_external_file_cache": "false",
    # It draws conclusions from footer statistics, which may be wrong, also about a condition that is `guarded`. The
    # other optimizers that read statistics push conditions into the scan. Our joins are of row numbers alone.
    "disabled_optimizers": "statistics_propagation",
    # Footer statistics without NaN counts do not exclude NaN. DuckDB 1 has no such setting.
    "[parquet_can_have_nan]": "true",
}
_reading = PrivateDatabase(_SETTINGS, has_bars=False)
_queries = PrivateDatabase({"TimeZone": "UTC"}, spills=True)
_nan_rows: bool | None = None


def cursor() -> contextlib.AbstractContextManager[Any]:
    """A cursor of the database that reads files, which one thread uses."""
    return _reading.cursor()


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


def query_connection() -> Any:
    """A connection for whole queries, with DuckDB's own settings, in UTC. It may spill into a temporary folder."""
    return _queries.connection().cursor()


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
    "SELECT count(*) FROM {file} WHERE f > 5": 1,
    "SELECT count(*) FROM {file} WHERE f > 5 AND k = 2": 1,
    "SELECT count(*) FROM {file} WHERE f > 5 AND file_row_number BETWEEN 1 AND 2": 1,
    "SELECT count(*) FROM (SELECT f AS g FROM {file}) WHERE g > 5": 1,
    "SELECT count(*) FROM {file} WHERE struct_extract(s, 'c') > 5": 1,
    "SELECT count(*) FROM {file} WHERE same <> 1": 1,
    "SELECT count(*) FROM (SELECT same FROM {file} WHERE k = 2 LIMIT 3) WHERE isnan(same)": 1,
    "SELECT isnan(top)::INT FROM (SELECT top FROM {file}) ORDER BY top DESC NULLS LAST LIMIT 1": 1,
}


def nan_rows() -> bool:
    """Return True if conditions on floats return rows with NaN in the installed DuckDB. Tested once per process."""
    global _nan_rows
    if _nan_rows is None:
        _nan_rows = _tested_nan_rows()
    return _nan_rows


def _tested_nan_rows() -> bool:
    nan, has_value = np.nan, np.arange(6) < 3

    def column(*values: float) -> pa.Array:
        return from_numpy(np.array([*values, 0, 0, 0]), has_value)

    f, same, k = column(1.0, nan, 3.0), column(1.0, nan, 1.0), column(1, 2, 3)
    top = from_numpy(np.array([9.0, 9.0, 9.0, 1.0, nan, 3.0]))  # in two row groups, the greater values first
    columns = {"f": f, "same": same, "k": k, "s": pa.StructArray.from_arrays([f], ["c"]), "top": top}
    with tempfile.TemporaryDirectory(prefix="skipstone-") as folder, cursor() as opened:
        path = Path(folder) / "nan.parquet"
        pq.write_table(pa.Table.from_pydict(columns), path, row_group_size=3)
        file = f"read_parquet({string_sql(str(path))})"
        with contextlib.suppress(duckdb.Error):
            return all(
                opened.execute(query.format(file=file)).fetchall() == [(expected,)]
                for query, expected in _CHECKS.items()
            )
    return False
