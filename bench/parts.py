"""Parts of values: a text within a text, by the n-gram index, against DuckDB's scan over the same files and Lance.

SKIPSTONE_BENCH_LINES log lines (default 3,000,000) in 60 files, and a tenth as many texts of each other kind. With
SKIPSTONE_BENCH_LANCE, the python of an environment that has pylance, the same queries are asked of its NGRAM index in a
process of that python, of its LABEL_LIST for lists, and of its BTREE for keys. SKIPSTONE_BENCH_ROWS, a regular
expression, chooses rows of the table.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import skipstone as ss

from .support.harness import Bench, time_text
from .support.parts_keys import key_lines
from .support.parts_lance import lance_lines
from .support.parts_lists import add_lists
from .support.parts_text import KINDS, RARE, column_bytes, lake

ROUNDS = 7
QUERIES = {  # of the log
    "a text in 10 rows": f"contains(message, '{RARE}')",
    "LIKE, 10 rows": f"message LIKE '%token={RARE[:8]}%'",
    "a regular expression, 10 rows": f"regexp_matches(message, 'token={RARE[:6]}[0-9a-f]+')",
    "ILIKE, 10 rows": f"message ILIKE '%TOKEN={RARE[:8].upper()}%'",
    "a text that is nowhere": "contains(message, 'no such text')",
    "a text in 46 rows": "contains(message, 'for user-4711')",
    "a text in a sixth of the rows": "contains(message, ' ERROR ')",
    "a text in each row": "contains(message, 'trace=')",
}


def main() -> None:
    count = int(os.environ.get("SKIPSTONE_BENCH_LINES", "3000000"))
    chosen = re.compile(os.environ.get("SKIPSTONE_BENCH_ROWS", ""))
    bench = Bench("parts", f"Parts of values, {count:,} log lines", "make bench NAME=parts", libraries=["duckdb"])
    sections = [
        "## The index",
        "",
        "| texts | read by pyarrow | build / read | index / column |",
        "| --- | ---: | ---: | ---: |",
    ]
    with tempfile.TemporaryDirectory() as index:
        for kind in KINDS:
            folder = lake(kind, count if kind == "log" else count // 10)
            table = ss.create(folder, partitioning=None, index_path=f"{index}/{kind}")
            read_s, build_s = _read_s(folder), _build_s(table)
            (row,) = [one for one in table.indexes().to_pylist() if one["kind"] == "ngram"]
            share = row["size_bytes"] / column_bytes(folder)
            sections.append(f"| {kind} | {time_text(read_s)} | {build_s / read_s:.1f} | {share:.0%} |")
            for name, where in (QUERIES if kind == "log" else _of_kind(kind, folder)).items():
                if chosen.search(f"{kind}: {name}"):
                    _add(bench, f"{kind}: {name}", where, table, folder)
        sections += add_lists(bench, count, index)
        bench.run(ROUNDS)
        sections += _lance_text(lake("log", count), f"{index}/lance")
        sections += key_lines(count * 2, index)
    bench.report(sections)


def _lance_text(folder: Path, target: str) -> list[str]:
    queries = {name: where for name, where in QUERIES.items() if where.startswith(("contains", "message LIKE"))}
    return lance_lines(folder, "message", "NGRAM", queries, column_bytes(folder), target)


def _read_s(folder: Path) -> float:
    start_s = time.perf_counter()
    for path in sorted(folder.glob("*.parquet")):
        pq.read_table(path, columns=["message"])
    return time.perf_counter() - start_s


def _build_s(table: ss.Table) -> float:
    table.create_index("message", kind="ngram", ignore_case=True)  # compiles the kernels, if they are not kept
    table.drop_index("message", kind="ngram")
    start_s = time.perf_counter()
    table.create_index("message", kind="ngram", ignore_case=True)
    return time.perf_counter() - start_s


def _of_kind(kind: str, folder: Path) -> dict[str, str]:
    """A part of a value, and a part of which two characters are others."""
    column = pq.read_table(sorted(folder.glob("*.parquet"))[3], columns=["message"]).column(0)
    value = column[len(column) // 2].as_py()
    part = value[-10:] if kind != "cjk" else value[4:8]
    return {
        "a part of one value": f"contains(message, '{part}')",
        "another text": f"contains(message, '{part[:-2]}Zq')",
    }


def _add(bench: Bench, row: str, where: str, table: ss.Table, folder: Path) -> None:
    connection = duckdb.connect()
    query = f"SELECT n FROM read_parquet('{folder}/*.parquet') WHERE {where}"
    bench.case(row, "skipstone", lambda: table.scan(where, columns=["n"]).to_table(), kind="us")
    bench.case(row, "DuckDB", lambda: connection.sql(query).to_arrow_table())


if __name__ == "__main__":
    main()
