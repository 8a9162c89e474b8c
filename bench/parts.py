"""Parts of values: a text within a log line, an element of a list, a value in a JSON document, against DuckDB's scan.

SKIPSTONE_BENCH_LINES log lines (default 3,000,000) in 60 files, as many lists of tags and as many documents.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import skipstone as ss
from skipstone.engine.choices import IndexKindName

from .support.harness import Bench
from .support.parts_data import RARE, RARE_TAG, column_bytes, documents, lists, log_lines

ROUNDS = 7
QUERIES = {
    "log: a text in 10 rows": f"contains(message, '{RARE}')",
    "log: a regular expression, 10 rows": f"regexp_matches(message, 'token={RARE[:6]}[0-9a-f]+')",
    "log: ILIKE, 10 rows": f"message ILIKE '%TOKEN={RARE[:8].upper()}%'",
    "log: a text that is nowhere": "contains(message, 'no such text')",
    "log: a text in a sixth of the rows": "contains(message, ' ERROR ')",
}
LIST_QUERIES = {
    "list: a rare tag": f"list_contains(tags, {RARE_TAG})",
    "list: both of 2 tags": f"list_has_all(tags, [{RARE_TAG}, 3])",
}
PATH = "payload->>'$.user.id'"
DOCUMENT_QUERIES = {"JSON: the rows of one user": f"({PATH}) = 'u4711'"}


def main() -> None:
    count = int(os.environ.get("SKIPSTONE_BENCH_LINES", "3000000"))
    bench = Bench("parts", f"Parts of values, {count:,} log lines", libraries=["duckdb"])
    lines = ["## Indexes", "", "| index | build / read by pyarrow | index / column |", "| --- | ---: | ---: |"]
    with tempfile.TemporaryDirectory() as index:
        lakes: list[tuple[Path, str, str, list[IndexKindName], dict[str, str]]] = [
            (log_lines(count), "message", "message", ["ngram"], QUERIES),
            (lists(count), "tags", "tags", ["bloom", "secondary"], LIST_QUERIES),
            (documents(count), "payload", PATH, ["bloom", "secondary"], DOCUMENT_QUERIES),
        ]
        for folder, column, covered, kinds, queries in lakes:
            table = ss.create(folder, partitioning=None, index_path=f"{index}/{column}")
            read_s = _read_s(folder, column)
            for kind in kinds:
                build_s, share = _build(table, covered, kind)
                lines.append(f"| {kind}({covered}) | {build_s / read_s:.1f} | {share / column_bytes(folder):.0%} |")
            for row, where in queries.items():
                _add(bench, row, where, table)
        bench.run(ROUNDS)
    bench.report(lines)


def _read_s(folder: Path, column: str) -> float:
    start_s = time.perf_counter()
    for path in sorted(folder.glob("*.parquet")):
        pq.read_table(path, columns=[column])
    return time.perf_counter() - start_s


def _build(table: ss.Table, covered: str, kind: IndexKindName) -> tuple[float, int]:
    """Build an index twice, as the first build may compile kernels. Return the time of the second, and its bytes."""
    ignore_case = True if kind == "ngram" else None
    table.create_index(covered, kind=kind, ignore_case=ignore_case)
    table.drop_index(covered, kind=kind)
    start_s = time.perf_counter()
    table.create_index(covered, kind=kind, ignore_case=ignore_case)
    build_s = time.perf_counter() - start_s
    (row,) = [one for one in table.indexes().to_pylist() if one["kind"] == kind]
    return build_s, row["size_bytes"]


def _add(bench: Bench, row: str, where: str, table: ss.Table) -> None:
    connection = duckdb.connect()
    query = f"SELECT n FROM read_parquet('{table.location}/*.parquet') WHERE {where}"
    bench.case(row, "skipstone", lambda: table.scan(where, columns=["n"]).to_table(), kind="us")
    bench.case(row, "DuckDB", lambda: connection.sql(query).to_arrow_table())


if __name__ == "__main__":
    main()
