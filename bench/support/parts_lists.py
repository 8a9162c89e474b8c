"""Rows by an element of a list, in our indexes, in DuckDB's scan, and in Lance's LABEL_LIST."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

from .cached_folder import cached_folder
from .data import CACHE
from .harness import Bench, time_text

FILES = 60
VALUES = 1_000_000  # different tags; a few are in most rows
RARE = 777_777
LANCE_ROUNDS = 7
QUERIES = {
    "list: a tag of about 10 rows": f"list_contains(tags, {RARE})",
    "list: = ANY": f"{RARE} = ANY(tags)",
    "list: one of 3 tags": f"list_has_any(tags, [{RARE}, {RARE + 1}, {RARE + 2}])",
    "list: both of 2 tags": f"list_has_all(tags, [{RARE}, 3])",
    "list: a tag that is nowhere": f"list_contains(tags, {VALUES + 1})",
    "list: a tag of a tenth of the rows": "list_contains(tags, 3)",
}
_LANCE = """
import json, os, sys, time
import lance, pyarrow.dataset as ds
source, target, queries, rounds = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
data = lance.write_dataset(ds.dataset(source, format="parquet").to_table(columns=["n", "tags"]), target)
start = time.perf_counter()
data.create_scalar_index("tags", "LABEL_LIST")
build_s = time.perf_counter() - start
walked = os.walk(os.path.join(target, "_indices"))
size = sum(os.path.getsize(os.path.join(top, name)) for top, _, names in walked for name in names)
times = {}
for name, where in queries.items():
    samples = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        rows = data.to_table(filter=where, columns=["n"]).num_rows
        samples.append(time.perf_counter() - start)
    times[name] = [sorted(samples[1:])[rounds // 2], rows]
print(json.dumps({"version": lance.__version__, "build_s": build_s, "bytes": size, "times": times}))
"""


def lake(count: int) -> Path:
    """A folder of files with `n` and `tags`: a list of up to 8 tags, of which some are frequent. It is kept."""

    def write(folder: Path) -> None:
        each = count // FILES
        for number in range(FILES):
            random = np.random.default_rng(number)
            sizes = random.integers(0, 9, each)
            total = int(sizes.sum())
            tags = random.integers(0, VALUES, total)
            is_frequent = random.random(total) < 0.25
            tags[is_frequent] = random.integers(0, 10, int(is_frequent.sum()))
            offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
            lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tags))
            rows = pa.table({"n": np.arange(number * each, (number + 1) * each), "tags": lists})
            pq.write_table(rows, folder / f"part-{number:04}.parquet", compression="zstd")

    return cached_folder(CACHE / f"lists-{count}-{FILES}", write).folder


def add_lists(bench: Bench, count: int, index: str) -> list[str]:
    """Add the rows, and return sections about the index."""
    folder = lake(count)
    table = ss.create(folder, partitioning=None, index_path=f"{index}/lists")
    sections = [
        "",
        "## Indexes of list elements",
        "",
        "| kind | build / read | index / column |",
        "| --- | ---: | ---: |",
    ]
    read_s = _read_s(folder)
    for kind in ("bloom", "secondary"):
        start_s = time.perf_counter()
        table.create_index("tags", kind=kind)
        build_s = time.perf_counter() - start_s
        (row,) = [one for one in table.indexes().to_pylist() if one["kind"] == kind]
        sections.append(f"| {kind} | {build_s / read_s:.1f} | {row['size_bytes'] / _column_bytes(folder):.0%} |")
    connection = duckdb.connect()
    for name, where in QUERIES.items():
        query = f"SELECT n FROM read_parquet('{folder}/*.parquet') WHERE {where}"
        bench.case(name, "skipstone", lambda where=where: table.scan(where, columns=["n"]).to_table(), kind="us")
        bench.case(name, "DuckDB", lambda query=query: connection.sql(query).to_arrow_table())
    return sections + _lance(folder, f"{index}/lance-lists")


def _read_s(folder: Path) -> float:
    start_s = time.perf_counter()
    for path in sorted(folder.glob("*.parquet")):
        pq.read_table(path, columns=["tags"])
    return time.perf_counter() - start_s


def _column_bytes(folder: Path) -> int:
    """The compressed bytes of `tags` in all files."""
    groups = [
        metadata.row_group(i)
        for metadata in map(pq.read_metadata, folder.glob("*.parquet"))
        for i in range(metadata.num_row_groups)
    ]
    return sum(group.column(1).total_compressed_size for group in groups)


def _lance(folder: Path, target: str) -> list[str]:
    python = os.environ.get("SKIPSTONE_BENCH_LANCE")
    if not python:
        return []
    queries = {name: where.replace("list_", "array_") for name, where in QUERIES.items() if where.startswith("list_")}
    arguments = [str(folder), target, json.dumps(queries), str(LANCE_ROUNDS)]
    result = subprocess.run([python, "-c", _LANCE, *arguments], capture_output=True, text=True, check=True)
    found = json.loads(result.stdout)
    share = found["bytes"] / _column_bytes(folder)
    lines = ["", f"## Lance {found['version']}, LABEL_LIST, the same lists in its own format", ""]
    lines += [f"Build {time_text(found['build_s'])}, {share:.0%} of the Parquet column."]
    lines += ["", "| task | time | rows |", "| --- | ---: | ---: |"]
    return lines + [f"| {name} | {time_text(seconds)} | {rows:,} |" for name, (seconds, rows) in found["times"].items()]
