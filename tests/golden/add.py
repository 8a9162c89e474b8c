"""Adds golden tables: `python tests/golden/add.py [NAME ...]`, for those that are not there yet.

A golden table is never created again: every later version of Skipstone must read these bytes. If the
format grows, add a function, and with it a table of a new name.
"""

from __future__ import annotations

import datetime as dt
import decimal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import golden_tables
import skipstone as ss

NAN = float("nan")
Made = tuple[str, list[str]]  # where the table is in the folder, and the queries


def plain(root: Path) -> Made:
    """Many types, with nulls, NaN and -0.0; written by transactions; statistics, filters and secondary keys."""
    utc = dt.UTC
    columns = {
        "i": pa.array([3, None, -(2**63), 2**63 - 1], pa.int64()),
        "u": pa.array([0, 1, 2**64 - 1, None], pa.uint64()),
        "f": pa.array([NAN, -0.0, 0.0, None], pa.float64()),
        "s": pa.array(["a", "", None, "zürich 水" * 30]),
        "b": pa.array([b"\xff\x00", b"", None, b"x"]),
        "d": pa.array([dt.date(2024, 2, 29), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        "t": pa.array([dt.datetime(2024, 5, 1, 12, tzinfo=utc), None] * 2, pa.timestamp("us", "UTC")),
        "n": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-99999.99"), decimal.Decimal("0.00")]),
        "o": pa.array([True, False, None, True]),
        "l": pa.array([[1, 2], [], None, [None, 7]], pa.list_(pa.int64())),
        "r": pa.array([{"x": 1, "y": "p"}, {"x": None, "y": None}, None, {"x": 4, "y": "q"}]),
    }
    rows = pa.table(columns)
    with ss.create(root / "table", schema=rows.schema) as table:
        table.create_index("i", kind="secondary")
        table.create_index(["s", "d"], kind="secondary")
        table.create_index("b", kind="bloom")
        for first in range(4):
            with table.transaction() as tx:
                tx.write(rows.slice(first).append_column("k", pa.nulls(4 - first)).drop(["k"]))
        table.create_index("f", kind="bloom")
    wheres = ["i = 3", "f = 'NaN'", "f = 0", "s = '' AND d IS NULL", "b = '\\xFF\\x00'::BLOB", "u > 5", "r.x = 4"]
    return "table", ["", *wheres, "d = DATE '9999-12-31'", "n < 0", "list_contains(l, 7)", "t IS NULL"]


def hive(root: Path) -> Made:
    """A directory of other programs' files: adds, a replaced file, a removed one, one that is no Parquet."""
    lake = root / "table"
    for year in (2023, 2024):
        for month in (1, 2):
            folder = lake / f"year={year}" / f"month={month}"
            folder.mkdir(parents=True)
            ids = range(100 * month + year, 100 * month + year + 50)
            pq.write_table(pa.table({"id": ids, "s": [f"k{i}" for i in ids]}), folder / "a.parquet", row_group_size=10)
    with ss.create(lake) as table:
        table.create_index("s", kind="bloom")
        table.create_index("id", kind="secondary")
        pq.write_table(pa.table({"id": [7], "s": ["new"]}), lake / "year=2024" / "month=2" / "b.parquet")
        (lake / "year=2023" / "month=1" / "a.parquet").unlink()
        pq.write_table(pa.table({"id": [8, 9], "s": ["r", "r"]}), lake / "year=2024" / "month=1" / "a.parquet")
        (lake / "year=2024" / "month=1" / "bad.parquet").write_bytes(b"PAR1 and no more")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table.sync()
            table.refresh_index("id", kind="secondary")
    return "table", ["", "id = 7", "s = 'r'", "year = 2023 AND s = 'k2230'", "month = 2", "s = 'nowhere'"]


def indexes(root: Path) -> Made:
    """Each kind of index: included columns, text, elements of lists, expressions, JSON."""
    ids = range(60)
    rows = pa.table(
        {
            "id": ids,
            "user": [f"u{i % 7}" for i in ids],
            "email": [f"User{i}@Example.com" for i in ids],
            "line": [f"{'ERROR' if i % 20 == 3 else 'info'} worker-{i} took {i * 37} ms" for i in ids],
            "tags": pa.array([[i % 5, None] if i % 3 else [] for i in ids], pa.list_(pa.int32())),
            "doc": [f'{{"user": {{"id": "u{i}"}}, "n": {i}}}' for i in ids],
            "ts": [dt.datetime(2024, 1, 1) + dt.timedelta(hours=i) for i in ids],
        }
    )
    with ss.create(root / "table", schema=rows.schema) as table:
        for first in (0, 20):
            with table.transaction() as tx:
                tx.write(rows.slice(first, 20))
        table.create_index("user", kind="secondary", include=["id", "ts"])
        table.create_index("line", kind="ngram", ignore_case=True)
        table.create_index("tags", kind="secondary")
        table.create_index("tags", kind="bloom")
        table.create_index("lower(email)", kind="bloom")
        table.create_index("doc->>'$.user.id'", kind="secondary")
        with table.transaction() as tx:
            tx.write(rows.slice(40, 20))
        table.delete("id = 5")
    wheres = ["user = 'u3'", "line LIKE '%ERROR%'", "line ILIKE '%WORKER-41 %'", "list_contains(tags, 4)"]
    return "table", ["", *wheres, "lower(email) = 'user33@example.com'", "doc->>'$.user.id' = 'u58'", "id = 5"]


def changes(root: Path) -> Made:
    """The life of a table: changes of rows and columns, undo, clean."""
    schema = pa.schema([("id", pa.int32()), ("s", pa.string()), ("day", pa.string())])
    with ss.create(root / "table", schema=schema, partitioning=["day"]) as table:
        table.create_index("id", kind="secondary")
        table.create_index("s", kind="bloom")

        def write(ids: range, **names: str) -> None:
            columns = {"id": pa.array(ids, pa.int32()), "s": [f"k{i}" for i in ids], "day": [f"d{i % 2}" for i in ids]}
            columns = {names.get(name, name): values for name, values in columns.items()}
            with table.transaction(key=f"load {ids.start}") as tx:
                tx.write(pa.table(columns))

        write(range(10))
        write(range(10, 20))
        table.savepoint("before changes")
        table.delete("id = 4")
        table.update({"s": "'changed'"}, "id BETWEEN 11 AND 12")
        table.upsert(
            pa.table({"id": pa.array([3, 99], pa.int32()), "s": ["up", "new"], "day": ["d1", "d1"]}), on=["id"]
        )
        table.alter(rename={"s": "name"}, add={"e": pa.scalar(5, pa.int64())}, widen={"id": pa.int64()})
        with table.transaction() as tx:
            tx.write(pa.table({"id": [200], "name": ["after"], "e": [None], "day": ["d0"]}, table.schema))
        table.restore(savepoint="before changes")
        write(range(20, 25), s="name")
        write(range(30, 35), s="name")
        table.rollback()
        table.optimize()
        table.drop_savepoint("before changes")
        table.clean(retain_versions=4, min_age=dt.timedelta(0))
        table.alter(add={"late": pa.string()})
    return "table", ["", "id = 4", "id = 11", "s = 'k12'", "name = 'after'", "day = 'd1'", "e = 5", "id = 22"]


def slices(root: Path) -> Made:
    """File groups with logs over bases, and declared states of commits."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    stats = pa.struct([("id", pa.struct([("min", pa.int64()), ("max", pa.int64()), ("null_count", pa.int64())]))])

    def file(path: str, first: int, **more: object) -> dict:
        bounds = {"id": {"min": first, "max": first + 9, "null_count": 0}}
        return {"path": path, "size_bytes": 100, "row_count": 10, "stats": bounds, **more}

    added = [
        file("g1.base", 0, file_group="g1", slice_instant="1", kind="base", merge=None, commit="c1"),
        file("g1.log", 5, file_group="g1", slice_instant="1", kind="log", merge="whole", commit="c2"),
        file("g2.base", 100, file_group="g2", slice_instant="1", kind="base", merge=None, commit="c1"),
        file("g2.log", 500, file_group="g2", slice_instant="1", kind="log", merge="partial", commit="c3"),
    ]
    types = [("path", pa.string()), ("size_bytes", pa.int64()), ("row_count", pa.int64()), ("stats", stats)]
    types += [(name, pa.string()) for name in ("file_group", "slice_instant", "kind", "merge", "commit")]
    with ss.create(root / "table", schema=schema) as table:
        with table.transaction() as tx:
            tx.add_files(pa.Table.from_pylist(added, schema=pa.schema(types)))
        with table.transaction() as tx:
            tx.set_commit_state({"c3": "failed"})
    return "table", ["", "id = 3", "id = 12", "id = 105", "id = 505", "id = 9000"]


def delta(root: Path) -> Made:
    """A Delta table with partitions and a deletion vector."""
    import log_lakes
    from deltalake import write_deltalake

    lake = root / "table"
    for first in (0, 10, 20):
        ids = list(range(first, first + 10))
        rows = pa.table({"id": ids, "s": [f"k{i}" for i in ids], "p": [f"p{i % 2}" for i in ids]})
        write_deltalake(str(lake), rows, mode="append", partition_by=["p"])
    with ss.create(lake) as table:
        table.create_index("id", kind="secondary")
        table.create_index("s", kind="bloom")
    log_lakes.delete_rows(lake, log_lakes.paths_of(lake)[0], [1, 3])
    with ss.open(lake) as table:
        table.sync()
    return "table", ["", "id = 7", "s = 'k12'", "p = 'p1' AND id > 20", "id = 1000"]


def iceberg(root: Path) -> Made:
    """An Iceberg table with deletes by position and a renamed column."""
    import log_lakes

    catalog = log_lakes.catalog(root)
    ids = list(range(20))
    rows = pa.table({"id": ids, "s": [f"k{i}" for i in ids]})
    table = catalog.create_table("lake.t", rows.schema)
    table.append(rows.slice(0, 10))
    table.append(rows.slice(10, 10))
    with table.update_schema() as update:
        update.rename_column("s", "name")
    lake = root / "lake" / "t"
    with ss.create(lake, source="iceberg") as ours:
        ours.create_index("id", kind="secondary")
        ours.create_index("name", kind="bloom")
    path = next(task.file.file_path for task in table.scan().plan_files())
    log_lakes.delete_positions(lake, path, [2, 3])
    with ss.open(lake) as ours:
        ours.sync()
        ours.refresh_index("id", kind="secondary")
    catalog.engine.dispose()
    return "lake/t", ["", "id = 7", "id = 5", "name = 'k12'", "name = 'k2'", "id = 2"]


def hudi(root: Path) -> Made:
    """A Hudi table, merge on read: logs over bases, a compaction and a rollback."""
    from hudi_tables import HudiTable

    made = HudiTable(root / "table", version=6, kind="MERGE_ON_READ")
    write = made.begin()
    group = made.insert(write, "p=a", {str(i): i for i in range(10)})
    made.insert(write, "p=b", {str(i): i for i in range(10, 20)})
    made.complete(write)
    write = made.begin()
    made.update(write, group, {"3": 300, "new": 1}, ["4"])
    made.complete(write)
    with ss.create(root / "table") as table:
        table.create_index("k", kind="secondary")
        write = made.begin()
        made.insert(write, "p=b", {"30": 30})
        made.complete(write)
        table.sync()
        table.refresh_index("k", kind="secondary")
    return "table", ["", "k = '3'", "k = '4'", "k = 'new'", "k = '30'", "p = 'b' AND v = 12"]


def moved(root: Path) -> Made:
    """Files written again with the same rows, whose entries in secondary indexes stay where they are."""
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
        exchange._BULK_ROWS = 1  # so that 80 rows are changed as many are
        try:
            table.update({"v": "1"}, "id IN (3, 45, 66)")
            table.upsert(pa.table({"id": [3, 30, 500], "v": [2, 2, 2]}), on="id")
            table.update({"s": "'other'"}, "id = 31")
            table.restore(table.version - 1)
            table.update({"v": "3"}, "true")
        finally:
            exchange._BULK_ROWS = usual
    return "table", ["", "id = 3", "id = 500", "s = 'k3'", "s = 'other'", "id IN (30, 45, 66)"]


TABLES: list[Callable[[Path], Made]] = [plain, hive, indexes, changes, slices, delta, iceberg, hudi, moved]


def main(wanted: list[str]) -> None:
    """Make the tables of these names, all by default, that are not there yet."""
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
