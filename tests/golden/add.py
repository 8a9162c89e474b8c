"""Adds golden tables: `python tests/golden/add.py [NAME ...]`, for those that do not exist yet.

A golden table is never created again: every later version of Skipstone must read these bytes. If the format grows, add
a function here, and with it a table of a new name. A function is not needed any more once its table is packed; that of
`moved` is kept as an example, and commit 16cda587 has all of them. The tables of 0.2.0:

plain     many types, with nulls, NaN and -0.0; written by transactions; statistics, filters and secondary keys
hive      a directory of other programs' files: added, replaced and removed files, and one that is not Parquet
indexes   each kind of index: included columns, text, elements of lists, expressions, JSON
changes   changes of rows and columns, a restore, a rollback, a clean
slices    file groups with logs over bases, and declared states of commits
delta     a Delta table with partitions and a deletion vector
iceberg   an Iceberg table with deletes by position and a renamed column
hudi      a Hudi table, merge on read: logs over bases
moved     files that are rewritten with the same rows, whose entries in secondary indexes are kept
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import golden_tables
import skipstone as ss

Made = tuple[str, list[str]]  # where the table is in the folder, and the queries


def moved(root: Path) -> Made:
    from skipstone.engine.rows_by_key import exchange

    lake, usual = root / "table", exchange._BULK_ROWS
    lake.mkdir()
    for file in range(4):
        ids = range(20 * file, 20 * file + 20)
        rows = pa.table({"id": ids, "s": [f"k{i % 9}" for i in ids], "v": [0] * 20})
        pq.write_table(rows, lake / f"{file}.parquet", row_group_size=6)
    with ss.create(lake) as table:
        table.create_index("id", kind="secondary")
        table.create_index("s", kind="secondary", include=["id"])
        exchange._BULK_ROWS = 1  # so that 80 rows count as many
        try:
            table.update({"v": "1"}, "id IN (3, 45, 66)")
            table.upsert(pa.table({"id": [3, 30, 500], "v": [2, 2, 2]}), on="id")
            table.update({"s": "'other'"}, "id = 31")
            table.restore(table.version - 1)
            table.update({"v": "3"}, "true")
        finally:
            exchange._BULK_ROWS = usual
    return "table", ["", "id = 3", "id = 500", "s = 'k3'", "s = 'other'", "id IN (30, 45, 66)"]


TABLES: list[Callable[[Path], Made]] = [moved]


def main(wanted: list[str]) -> None:
    """Create the tables of these names, all by default, that do not exist yet."""
    for make in TABLES:
        name = f"{make.__name__}-0.2.0"
        if (wanted and make.__name__ not in wanted) or name in golden_tables.names():
            continue
        with golden_tables.place(name) as root:
            location, queries = make(root)
            golden_tables.pack(name, root, location, queries)
        print(f"added {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
