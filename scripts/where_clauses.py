"""Asks a lake of mixed writers every WHERE clause of tests/support/any_where.py, here and in DuckDB, and writes
docs/where-clauses.md: whether the rows are the same, and how many files and bytes each reads.

    .venv/bin/python scripts/where_clauses.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))
from any_where import WHERES, any_where_rows  # type: ignore[import-not-found]  # noqa: E402

PAGE = REPOSITORY / "docs" / "where-clauses.md"
FILES, COPIES = 12, 500
WRITERS = ("pyarrow", "DuckDB", "polars")
HEAD = """# Every kind of WHERE, here and in DuckDB

Written by `scripts/where_clauses.py`: {count} clauses over {files} files of {size_kb:,} kB in all, by pyarrow
{pyarrow}, DuckDB {duckdb} and polars {polars} in turn (polars' lack `m`, `t` and `u`), with statistics of every
column and Bloom filters on `i` and `s`. Each file holds two different rows, {copies} times each. `n` of the
rows that match is read.

*same*: the rows are those that DuckDB finds over the same rows in memory. *files*: those of which anything is
read. *kB*: bytes read of the Parquet files; the index is in memory. DuckDB's are what it reports itself: it
reads every file's footer at each query, and these files are small. A clause that prunes nothing reads its
columns of all files.

{same} of {count} clauses give the same rows. What differs from DuckDB on purpose:
[predicates.md](predicates.md).

| clause | same | rows | files, of {files} | kB | DuckDB: kB |
| --- | --- | ---: | ---: | ---: | ---: |
"""


def write_lake(root: Path) -> None:
    """Twelve files, by three writers in turn."""
    rows = any_where_rows()
    rows = rows.set_column(rows.schema.get_field_index("tz"), "tz", rows["tz"].cast(pa.timestamp("us", "UTC")))
    for number in range(FILES):
        copies = [rows.slice(2 * number + row, 1) for row in (0, 1) for _ in range(COPIES)]
        part = pa.concat_tables(copies).combine_chunks()
        numbers = pa.array(range(2 * COPIES * number, 2 * COPIES * (number + 1)), pa.int64())
        part = part.set_column(part.schema.get_field_index("n"), "n", numbers)
        path = root / f"{number:02}.parquet"
        writer = WRITERS[number % len(WRITERS)]
        if writer == "pyarrow":
            pq.write_table(part, path, row_group_size=COPIES)
        elif writer == "DuckDB":
            with duckdb.connect() as connection:
                connection.execute("SET TimeZone = 'UTC'")
                connection.execute(f"COPY (FROM part) TO '{path}' (FORMAT parquet)")
        else:
            pl.DataFrame(part.drop_columns(["m", "t", "u"])).write_parquet(path, row_group_size=COPIES)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "lake"
        root.mkdir()
        write_lake(root)
        table = ss.create(root, partitioning=None)
        assert table.verify() == [], table.verify()
        table.create_index(["i", "s"], kind="bloom")
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'; SET enable_external_file_cache = false")
        connection.execute("PRAGMA enable_profiling = 'no_output'")
        connection.execute(f"CREATE VIEW files AS FROM read_parquet('{root}/*.parquet', union_by_name = true)")
        connection.execute("CREATE TABLE lake AS FROM files")
        lines = [_line(table, connection, where) for where in WHERES]
        size = sum(path.stat().st_size for path in root.glob("*.parquet"))
    head = HEAD.format(
        count=len(WHERES),
        files=FILES,
        copies=COPIES,
        size_kb=size // 1000,
        same=sum("| yes |" in line for line in lines),
        pyarrow=pa.__version__,
        duckdb=duckdb.__version__,
        polars=pl.__version__,
    )
    PAGE.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{PAGE.relative_to(REPOSITORY)}: {len(lines)} clauses")


def _line(table: ss.Table, connection: duckdb.DuckDBPyConnection, where: str) -> str:
    text = where.replace("`", '"').replace("<=>", "IS NOT DISTINCT FROM")
    query = f"SELECT n FROM {{}} WHERE (\n{text}\n) ORDER BY n"
    expected = connection.execute(query.format("lake")).fetchall()
    in_files = connection.execute(query.format("files")).fetchall()
    duckdb_bytes = json.loads(connection.get_profiling_information(format="json"))["io"]["total_bytes_read"]
    before = table.handle.storage.reading()
    plan = table.scan(where, columns=["n"])
    rows = sorted(plan.to_table().column("n").to_pylist())
    ours = table.handle.storage.reading()[1] - before[1]
    files = len(set(plan.row_groups().column("path").to_pylist()))
    same = "yes" if rows == [n for (n,) in expected] else "**no**"
    note = "" if in_files == expected else f", {len(in_files):,} rows in the files"
    shown = where.replace("|", "\\|").replace("`", "")
    return f"| `{shown}` | {same} | {len(rows):,} | {files} | {ours / 1e3:,.1f} | {duckdb_bytes / 1e3:,.1f}{note} |"


if __name__ == "__main__":
    main()
