"""Asks a lake of mixed writers every WHERE clause of tests/support/any_where.py, here and in DuckDB, and writes
docs/where-clauses.md: whether the rows are the same, and how many files and bytes each reads.

    .venv/bin/python scripts/where_clauses.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

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
read. *kB*: bytes read of the Parquet files; the index is in memory. DuckDB opens every file for its footer at each
query; its *files* are those of which it reads anything else, counted by a file system of ours under it, and its
*kB*, footers included, what it reports itself. These files are small. A clause that prunes nothing reads its columns
of all files.

{same} of {count} clauses give the same rows. Fewer files than by DuckDB are read for {fewer} of them, as many
for {as_many}, more for {more}: DuckDB leaves out row groups by some expressions, too, that prune nothing here; here
each holds the values of one row. What differs from DuckDB on purpose:
[predicates.md](predicates.md).

| clause | same | rows | files, of {files} | kB | DuckDB: files | kB |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
"""


class CountedReads(LocalFileSystem):
    """Local files, as `counted://` paths; `opened`, and those `read` before their footers, since both were cleared."""

    protocol = "counted"
    opened: ClassVar[set[str]] = set()
    read: ClassVar[set[str]] = set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return LocalFileSystem._strip_protocol(path.replace("counted://", ""))

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super().open(path, mode, **options)
        read = file.read
        file.seek(-8, 2)
        footer_start = file.tell() - int.from_bytes(read(4), "little")
        file.seek(0)
        self.opened.add(path)

        def counted(size: int = -1) -> bytes:
            if file.tell() < footer_start:
                self.read.add(path)
            return read(size)

        file.read = counted
        return file


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
        connection.register_filesystem(CountedReads())
        for view, place in (("files", root), ("counted_files", f"counted://{root}")):
            scan = f"read_parquet('{place}/*.parquet', union_by_name = true)"
            connection.execute(f"CREATE VIEW {view} AS FROM {scan}")
        connection.execute("CREATE TABLE lake AS FROM files")
        lines, differences = zip(*(_line(table, connection, where) for where in WHERES), strict=True)
        size = sum(path.stat().st_size for path in root.glob("*.parquet"))
    head = HEAD.format(
        count=len(WHERES),
        files=FILES,
        copies=COPIES,
        size_kb=size // 1000,
        fewer=sum(difference < 0 for difference in differences),
        as_many=differences.count(0),
        more=sum(difference > 0 for difference in differences),
        same=sum("| yes |" in line for line in lines),
        pyarrow=pa.__version__,
        duckdb=duckdb.__version__,
        polars=pl.__version__,
    )
    PAGE.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{PAGE.relative_to(REPOSITORY)}: {len(lines)} clauses")


def _line(table: ss.Table, connection: duckdb.DuckDBPyConnection, where: str) -> tuple[str, int]:
    """(the row of the table, how many more files are read here than by DuckDB)"""
    text = where.replace("`", '"').replace("<=>", " IS NOT DISTINCT FROM ")
    query = f"SELECT n FROM {{}} WHERE (\n{text}\n) ORDER BY n"
    expected = connection.execute(query.format("lake")).fetchall()
    in_files = connection.execute(query.format("files")).fetchall()
    duckdb_bytes = json.loads(connection.get_profiling_information(format="json"))["io"]["total_bytes_read"]
    CountedReads.opened.clear()
    CountedReads.read.clear()
    connection.execute("SET threads = 1; SET disable_parquet_prefetching = true")  # else it reads footers with the data
    assert connection.execute(query.format("counted_files")).fetchall() == in_files
    connection.execute("RESET threads; RESET disable_parquet_prefetching")
    assert len(CountedReads.opened) in (0, FILES)
    before = table.handle.storage.reading()
    plan = table.scan(where, columns=["n"])
    rows = sorted(plan.to_table().column("n").to_pylist())
    ours = table.handle.storage.reading()[1] - before[1]
    files = len(set(plan.row_groups().column("path").to_pylist()))
    same = "yes" if rows == [n for (n,) in expected] else "**no**"
    note = "" if in_files == expected else f", {len(in_files):,} rows in the files"
    shown = where.replace("|", "\\|").replace("`", "")
    theirs = f"{len(CountedReads.read)}{note} | {duckdb_bytes / 1e3:,.1f}"
    line = f"| `{shown}` | {same} | {len(rows):,} | {files} | {ours / 1e3:,.1f} | {theirs} |"
    return line, files - len(CountedReads.read)


if __name__ == "__main__":
    main()
