"""Compares what `advise` forecasts with what happens: each index that it suggests for some queries is built, each order
of rows is laid, and the same queries are planned again.

    .venv/bin/python scripts/advice_forecasts.py LAKE [QUERIES.sql]

LAKE is a directory of Parquet files, which stays as it is; QUERIES.sql has a WHERE clause a line, and without it LAKE
holds TPC-H's lineitem. Prints a line for each suggestion: bytes and files read by the queries as forecast and as it
came, and how many times they differ. Orders by several columns are left out: how rows would be laid depends on who
lays them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import skipstone as ss

LINEITEM = (
    "l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07",
    "l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-10-01'",
    "l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01'",
    "l_partkey = 155190",
    "l_partkey IN (1, 77777, 123456)",
    "l_suppkey = 4711",
    "l_orderkey = 3000000",
    "l_shipmode IN ('MAIL', 'SHIP') AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1994-02-01'",
    "l_discount = 0.1",
)


def read_by(table: ss.Table, queries: Sequence[str]) -> tuple[int, float]:
    """(files, bytes by row groups) that queries read, counted over the plans themselves."""
    sizes = dict(zip(*(table.files().column(name).to_pylist() for name in ("path", "size_bytes")), strict=True))
    groups = {path: pq.read_metadata(Path(table.location) / path).num_row_groups for path in sizes}
    files, read_bytes = 0, 0.0
    for query in queries:
        paths = table.scan(query).row_groups().column("path").to_pylist()
        files += len(set(paths))
        read_bytes += sum(sizes[path] / groups[path] for path in paths)
    return files, read_bytes


def ordered(lake: Path, column: str, folder: Path) -> ss.Table:
    """The table with its rows in the order of a column, in as many files and row groups."""
    names = sorted(lake.glob("*.parquet"))
    rows = ds.dataset([str(name) for name in names]).to_table()
    # pyarrow cannot sort views of strings.
    plain = [field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field for field in rows.schema]
    rows = rows.cast(pa.schema(plain)).sort_by(column)
    step, groups = -(-rows.num_rows // len(names)), pq.read_metadata(names[0]).num_row_groups
    folder.mkdir()
    for number in range(len(names)):
        part = rows.slice(number * step, step)
        pq.write_table(
            part, folder / f"{number}.parquet", row_group_size=-(-part.num_rows // groups), compression="zstd"
        )
    return ss.create(folder, index_path=f"{folder}-index")


def times(forecast: float, actual: float) -> str:
    low, high = sorted((max(forecast, 1.0), max(actual, 1.0)))
    return f"{high / low:.2f}"


def main(lake: Path, queries: Sequence[str]) -> None:
    columns = ("suggestion", "files", "came", "times", "MB", "came", "times", "index MB", "came", "times")
    print(("{:34}" + "{:>9}" * 9).format(*columns))
    with tempfile.TemporaryDirectory() as root:
        table = ss.create(lake, index_path=f"{root}/index")
        for number, one in enumerate(table.advise(queries, sample_files=16).suggestions):
            if one.kind == "cluster" and len(one.columns) > 1:
                continue
            index = Path(root, f"index-{number}")
            if one.kind == "cluster":
                files, read_bytes = read_by(ordered(lake, one.columns[0], Path(root, f"{number}")), queries)
                index_bytes = one.index_bytes
            else:
                built = ss.create(lake, index_path=index)
                before = sum(file.stat().st_size for file in index.rglob("*") if file.is_file())
                exec(one.code, {"table": built})
                index_bytes = sum(file.stat().st_size for file in index.rglob("*") if file.is_file()) - before
                files, read_bytes = read_by(built, queries)
            cells = [one.files_then, files, times(one.files_then, files), one.bytes_then / 1e6, read_bytes / 1e6]
            cells += [times(one.bytes_then, read_bytes), one.index_bytes / 1e6, index_bytes / 1e6]
            cells += [times(one.index_bytes, index_bytes)]
            text = "".join(f"{c:>9,.1f}" if isinstance(c, float) else f"{c:>9}" for c in cells)
            print(f"{one.kind + ' ' + ', '.join(one.columns):34.34}{text}", flush=True)


if __name__ == "__main__":
    given = Path(sys.argv[2]).read_text(encoding="utf-8").splitlines() if len(sys.argv) > 2 else LINEITEM
    main(Path(sys.argv[1]), [query for query in given if query.strip()])
