"""Planning through `skipstone serve`, from pyiceberg: one scan's files over HTTP, against loading manifests.

100,000 files of ten rows (SKIPSTONE_BENCH_FILES for another number), over which `id` ascends. The manifests of the peer
have bounds of both columns. Each contender returns the paths of the files to read for its next `id`. The server is a
process on this machine.

    skipstone, a table that is loaded    `scan(...).plan_files()` of a table of the REST catalog: one request
    skipstone, with the load             also `load_table`: two requests
    pyiceberg                            `StaticTable`, then `scan(...).plan_files()` from its manifests
    skipstone, without HTTP              `ss.open` to `plan.files()` in this process
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable

from bench.support.cached_folder import cached_folder
from bench.support.data import CACHE
from bench.support.harness import RESULTS, Bench, next_of

FILES = 100_000
ROUNDS = 9
ROWS = 10
_VALUES = 50
_LAYOUT = 1
_APPEND_FILES = 25_000
SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string())])


def main() -> None:
    run(int(os.environ.get("SKIPSTONE_BENCH_FILES", FILES)))


def run(files: int, rounds: int = ROUNDS, cache: Path = CACHE, results: Path = RESULTS) -> str:
    """Run the whole benchmark over so many files. Return the report."""
    folder = lake_of(files, cache)
    lake, metadata = folder / "lake", (folder / "metadata.txt").read_text(encoding="utf-8")
    catalog = folder / "catalog.toml"
    catalog.write_text(
        f'[tables."bench.files"]\npath = {json.dumps(str(lake))}\nmanifest_files = 0\n', encoding="utf-8"
    )
    title = f"Planning over {files:,} files through an Iceberg REST catalog"
    bench = Bench("serve", title, libraries=["pyiceberg", "starlette", "uvicorn"], results=results)
    with _serving(catalog) as uri:
        rest = RestCatalog("bench", uri=uri)
        loaded = rest.load_table("bench.files")
        values = np.random.default_rng(5).integers(files * ROWS, size=_VALUES).tolist()

        def scanned(load: Callable[[], Any]) -> Callable[[int], pa.Array]:
            return lambda value: _paths(load().scan(EqualTo("id", value)).plan_files())

        def direct(value: int) -> pa.Array:
            with ss.open(lake) as table:
                return table.scan(ss.col("id") == value).files().column("path").combine_chunks()

        row, load = "clustered integer", lambda: rest.load_table("bench.files")
        known = scanned(lambda: loaded)
        bench.case(row, "skipstone, a table that is loaded", known, setup=next_of(values), kind="us")
        bench.case(row, "skipstone, with the load", scanned(load), setup=next_of(values))
        manifests = scanned(lambda: StaticTable.from_metadata(metadata))
        bench.case(row, "pyiceberg", manifests, setup=next_of(values))
        bench.case(row, "skipstone, without HTTP", direct, setup=next_of(values), kind="floor")
        bench.run(rounds=rounds)
    return bench.report()


def _paths(tasks: Any) -> pa.Array:
    return pa.array([task.file.file_path.rpartition("/")[2] for task in tasks], pa.string())


def _key(row: int) -> str:
    return f"{row * 0x9E3779B97F4A7C15 % (1 << 64):016x}"


@contextlib.contextmanager
def _serving(catalog: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "skipstone", "serve", str(catalog), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["uri"]
    finally:
        process.kill()
        process.wait()


# -- built once -------------------------------------------------------------------------------------------------------


def lake_of(files: int, cache: Path) -> Path:
    """Return a folder of so many files, with a filter of `key`: `lake`, and `metadata.txt` of their Iceberg table."""
    return cached_folder(cache / f"serve-{files}-v{_LAYOUT}", lambda folder: _build(folder, files)).folder


def _build(folder: Path, files: int) -> None:
    (lake := folder / "lake").mkdir(parents=True)
    for number in range(files):
        rows = range(number * ROWS, (number + 1) * ROWS)
        columns = [list(rows), [_key(row) for row in rows]]
        pq.write_table(pa.table(columns, schema=SCHEMA), lake / f"{number:06}.parquet")
    time.sleep(3)  # the time of a folder that was written a moment ago does not prove what is in it
    with ss.create(lake) as table:
        table.create_index("key", kind="bloom")
    (folder / "metadata.txt").write_text(_iceberg(folder, lake, files), encoding="utf-8")


def _iceberg(folder: Path, lake: Path, files: int) -> str:
    """Make an Iceberg table of the same files, with bounds in its manifests. Return its metadata file."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder / "iceberg"))
    catalog.create_namespace("bench")
    table = catalog.create_table("bench.files", SCHEMA)
    kinds = [field.field_type for field in table.schema().fields]
    for start in range(0, files, _APPEND_FILES):
        with table.transaction() as tx, tx.update_snapshot().fast_append() as append:
            for number in range(start, min(start + _APPEND_FILES, files)):
                rows = range(number * ROWS, (number + 1) * ROWS)
                values: list[list[Any]] = [list(rows), [_key(row) for row in rows]]
                path = lake / f"{number:06}.parquet"
                file = DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=str(path),
                    file_format=FileFormat.PARQUET,
                    partition=Record(),
                    record_count=ROWS,
                    file_size_in_bytes=path.stat().st_size,
                    value_counts={1: ROWS, 2: ROWS},
                    null_value_counts={1: 0, 2: 0},
                    nan_value_counts={},
                    lower_bounds={i + 1: to_bytes(kinds[i], min(values[i])) for i in range(2)},
                    upper_bounds={i + 1: to_bytes(kinds[i], max(values[i])) for i in range(2)},
                )
                file.spec_id = 0
                append.append_data_file(file)
    catalog.engine.dispose()
    return table.metadata_location


if __name__ == "__main__":
    main()
