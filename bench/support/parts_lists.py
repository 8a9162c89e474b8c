"""Rows by an element of a list or by a value in a JSON document, in our indexes, and in DuckDB's scan; for lists also
in Lance's LABEL_LIST."""

from __future__ import annotations

import json
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

from .cached_folder import cached_folder
from .data import CACHE
from .harness import Bench
from .parts_lance import lance_lines

FILES = 60
VALUES = 100_000  # different tags; ten are frequent
RARE = 77_777
QUERIES = {
    "list: a rare tag": f"list_contains(tags, {RARE})",
    "list: = ANY": f"{RARE} = ANY(tags)",
    "list: one of 3 tags": f"list_has_any(tags, [{RARE}, {RARE + 1}, {RARE + 2}])",
    "list: both of 2 tags": f"list_has_all(tags, [{RARE}, 3])",
    "list: a tag that is nowhere": f"list_contains(tags, {VALUES + 1})",
    "list: a frequent tag": "list_contains(tags, 3)",
}
PATH = "payload->>'$.user.id'"
DOCUMENT_QUERIES = {
    "JSON: the rows of one user": f"({PATH}) = 'u4711'",
    "JSON: a user that is nowhere": f"({PATH}) = 'nobody'",
}


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


def documents(count: int) -> Path:
    """A folder of files with `n` and `payload`: JSON documents of 100,000 users. It is kept."""

    def write(folder: Path) -> None:
        each = count // FILES
        for number in range(FILES):
            numbers = np.random.default_rng(number).integers(0, 100_000, (each, 3)).tolist()
            texts = [
                json.dumps({"user": {"id": f"u{user}", "plan": "free"}, "items": [a, b], "ok": a % 2 == 0})
                for user, a, b in numbers
            ]
            rows = pa.table({"n": np.arange(number * each, (number + 1) * each), "payload": texts})
            pq.write_table(rows, folder / f"part-{number:04}.parquet", compression="zstd")

    return cached_folder(CACHE / f"documents-{count}-{FILES}", write).folder


def add_lists(bench: Bench, count: int, index: str) -> list[str]:
    """Add the rows of lists and of documents, and return sections about their indexes."""
    sections = ["", "## Indexes of elements and expressions", ""]
    sections += ["| index | kind | build / read | index / column |", "| --- | --- | ---: | ---: |"]
    folder = lake(count)
    sections += _add(bench, folder, "tags", "tags", QUERIES, f"{index}/lists")
    sections += _add(bench, documents(count), "payload", PATH, DOCUMENT_QUERIES, f"{index}/documents")
    queries = {name: where.replace("list_", "array_") for name, where in QUERIES.items() if where.startswith("list_")}
    return sections + lance_lines(folder, "tags", "LABEL_LIST", queries, _column_bytes(folder), f"{index}/lance-lists")


def _add(bench: Bench, folder: Path, column: str, covered: str, queries: dict[str, str], index: str) -> list[str]:
    table = ss.create(folder, partitioning=None, index_path=index)
    read_s, lines = _read_s(folder, column), []
    for kind in ("bloom", "secondary"):
        start_s = time.perf_counter()
        table.create_index(covered, kind=kind)
        build_s = time.perf_counter() - start_s
        (row,) = [one for one in table.indexes().to_pylist() if one["kind"] == kind]
        share = row["size_bytes"] / _column_bytes(folder)
        lines.append(f"| {covered} | {kind} | {build_s / read_s:.1f} | {share:.0%} |")
    connection = duckdb.connect()
    for name, where in queries.items():
        query = f"SELECT n FROM read_parquet('{folder}/*.parquet') WHERE {where}"
        bench.case(name, "skipstone", lambda where=where: table.scan(where, columns=["n"]).to_table(), kind="us")
        bench.case(name, "DuckDB", lambda query=query: connection.sql(query).to_arrow_table())
    return lines


def _read_s(folder: Path, column: str) -> float:
    start_s = time.perf_counter()
    for path in sorted(folder.glob("*.parquet")):
        pq.read_table(path, columns=[column])
    return time.perf_counter() - start_s


def _column_bytes(folder: Path) -> int:
    """The compressed bytes of the second column in all files."""
    groups = [
        metadata.row_group(i)
        for metadata in map(pq.read_metadata, folder.glob("*.parquet"))
        for i in range(metadata.num_row_groups)
    ]
    return sum(group.column(1).total_compressed_size for group in groups)
