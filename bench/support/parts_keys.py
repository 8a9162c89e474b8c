"""Building a secondary index of keys, and looking one up: processor time next to that of reading the column, of DuckDB
and polars, which sort the keys with their places and write them, and of Lance's BTREE."""

from __future__ import annotations

import resource
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

from .cached_folder import cached_folder
from .data import CACHE
from .harness import time_text
from .parts_lance import lance_results

FILES = 60
USERS = 66_000
LOOKUPS = 7


def lake(kind: str, count: int) -> Path:
    """A folder of files with `n` and `key`: random uuids as text, random int64, or users. It is kept."""

    def write(folder: Path) -> None:
        each = count // FILES
        for number in range(FILES):
            random = np.random.default_rng(number)
            keys: object = random.integers(0, USERS if kind == "users" else 1 << 62, each)
            if kind == "uuid":
                keys = [str(uuid.UUID(bytes=random.bytes(16))) for _ in range(each)]
            rows = pa.table({"key": keys, "n": np.arange(number * each, (number + 1) * each)})
            pq.write_table(rows, folder / f"part-{number:04}.parquet", compression="zstd", row_group_size=50_000)

    return cached_folder(CACHE / f"keys-{kind}-{count}-{FILES}", write).folder


def key_lines(count: int, index: str) -> list[str]:
    """A section: `count` uuids, and half as many numbers."""
    lines = ["", "## Building a secondary index of keys, in processor time", ""]
    lines += ["| keys | read | Skipstone | DuckDB sorts | polars sorts | Lance BTREE | look-up | Lance's |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for kind, rows in {"uuid": count, "int64": count // 2, "users": count // 2}.items():
        folder = lake(kind, rows)
        table = ss.create(folder, partitioning=None, index_path=f"{index}/keys-{kind}")
        paths = sorted(folder.glob("*.parquet"))
        read_s = min(_cpu_s(partial(_read, paths))[0] for _ in range(3))
        build_s, _ = _cpu_s(partial(table.create_index, "key", kind="secondary"))
        (row,) = [one for one in table.indexes().to_pylist() if one["kind"] == "secondary"]
        target = f"{index}/sorted-{kind}.parquet"
        sorted_s, sorted_bytes = _cpu_s(partial(_by_duckdb, folder, target))
        polars_s, polars_bytes = _cpu_s(partial(_by_polars, paths, target))
        key = pq.read_table(paths[7], columns=["key"]).column(0)[5].as_py()
        where = f"key = '{key}'" if kind == "uuid" else f"key = {key}"
        lance = lance_results(folder, "key", "BTREE", {"look-up": where}, f"{index}/lance-{kind}")
        cells = [f"{rows:,} {kind}", time_text(read_s), _cell(build_s, read_s, row["size_bytes"])]
        cells += [_cell(sorted_s, read_s, sorted_bytes), _cell(polars_s, read_s, polars_bytes)]
        cells += [_cell(lance["cpu_s"], read_s, lance["bytes"]) if lance else "", time_text(_lookup_s(table, where))]
        cells += [time_text(lance["times"]["look-up"][0]) if lance else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _read(paths: list[Path]) -> None:
    for path in paths:
        pq.read_table(path, columns=["key"])


def _cell(seconds: float, read_s: float, size_bytes: int) -> str:
    return f"{time_text(seconds)}, {seconds / read_s:.1f} reads, {size_bytes / 1e6:.0f} MB"


def _lookup_s(table: ss.Table, where: str) -> float:
    samples = []
    for _ in range(LOOKUPS + 1):
        start_s = time.perf_counter()
        table.scan(where, columns=["n"]).to_table()
        samples.append(time.perf_counter() - start_s)
    return sorted(samples[1:])[LOOKUPS // 2]


def _by_duckdb(folder: Path, target: str) -> int:
    rows = f"SELECT key, file_index, file_row_number FROM read_parquet('{folder}/*.parquet', file_row_number = true)"
    with duckdb.connect() as connection:
        connection.sql(f"COPY ({rows} ORDER BY ALL) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
    return Path(target).stat().st_size


def _by_polars(paths: list[Path], target: str) -> int:
    rows = pl.scan_parquet(paths, row_index_name="row").select("row", "key").sort("key", "row").collect()
    rows.write_parquet(target, compression="zstd", compression_level=1)
    return Path(target).stat().st_size


def _cpu_s(work: Callable[[], object]) -> tuple[float, int]:
    """(processor time, what the work returns if it is a number)."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent_s, result if isinstance(result, int) else 0
