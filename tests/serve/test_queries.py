"""Rows that pyiceberg reads through the catalog, with and without planning by the server, equal those of DuckDB."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import every, examples, few_of
from iceberg_server import client, planned_paths, served, sorted_rows
from lake_strategies import make_file, make_lake
from library_versions import needs
from log_lakes import newest_metadata

pytest.importorskip("starlette", reason='starlette is not installed: pip install -e ".[serve]"')
pyiceberg = pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
from pyiceberg.expressions import (  # noqa: E402
    And,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    Or,
    StartsWith,
)

pytestmark = needs("pyiceberg", 0, 11, what="a client that the server plans for")

FILES, ROWS = 12, 40
KINDS = {"id": pa.int64(), "day": pa.date32(), "ts": pa.timestamp("us", "UTC"), "price": pa.float64()}
SCHEMA = pa.schema([*KINDS.items(), ("small", pa.int32()), ("name", pa.string()), ("p", pa.string())])


def _rows_of(file: int, rng: random.Random) -> pa.Table:
    """The rows of one file: values overlap with those of other files, and a tenth is null."""

    def some(value):
        return None if rng.random() < 0.1 else value

    rows = [
        {
            "id": file * 1000 + rng.randrange(50),
            "day": some(dt.date(2024, 1, 1) + dt.timedelta(days=file + rng.randrange(4))),
            "ts": some(
                dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=file * 7, seconds=rng.randrange(60))
            ),
            "price": some(round(rng.uniform(-5, 5) + file, 2)),
            "small": some(rng.choice([0, 1, 7, file])),
            "name": some(f"{rng.choice('abc')}{file % 3}{rng.randrange(5)}"),
            "p": None if file == 5 else f"p{file % 3}",
        }
        for _ in range(ROWS)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def _hudi_rows_of(file: int, rng: random.Random) -> pa.Table:
    keys = [f"{rng.choice('abc')}{file}-{number}" for number in range(ROWS)]
    values = [file * 10 + rng.randrange(30) for _ in keys]
    return pa.table({"k": keys, "v": values, "p": [f"p{file % 3}"] * ROWS})


def _directory(folder, tables):
    for number, rows in enumerate(tables):
        value = rows.column("p")[0].as_py() or "__HIVE_DEFAULT_PARTITION__"
        make_file(folder / "lake", f"p={value}/{number}.parquet", rows.drop_columns("p"))
    return folder / "lake"


def _delta(folder, tables):
    deltalake = pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
    for rows in tables:
        deltalake.write_deltalake(str(folder / "lake"), rows, mode="append", partition_by=["p"])
    return folder / "lake"


def _iceberg(folder, tables):
    from log_lakes import catalog

    table = catalog(folder).create_table("lake.t", SCHEMA)
    with table.update_spec() as update:
        update.add_identity("p")
    for rows in tables:
        table.append(rows)
    return folder / "lake" / "t"


def _hudi(folder, tables):
    pytest.importorskip("hudi", reason='hudi is not installed: pip install -e ".[hudi]"')
    from hudi_tables import HudiTable

    table = HudiTable(folder / "lake")
    for rows in tables:
        write = table.begin()
        keys, values, partitions = (rows.column(name).to_pylist() for name in "kvp")
        table.insert(write, partitions[0], dict(zip(keys, values, strict=True)))
        table.complete(write)
    return table.folder


SOURCES = {"directory": _directory, "delta": _delta, "iceberg": _iceberg, "hudi": _hudi}


@pytest.fixture(scope="module", params=SOURCES)
def lake(request, tmp_path_factory):
    """(the server's address, all rows)."""
    rng, folder = random.Random(1), tmp_path_factory.mktemp(request.param)
    is_hudi, is_iceberg = (request.param == name for name in ("hudi", "iceberg"))
    tables = [(_hudi_rows_of if is_hudi else _rows_of)(number, rng) for number in range(FILES)]
    location = SOURCES[request.param](folder, tables)
    with ss.create(newest_metadata(location) if is_iceberg else location, index_path=folder / "index") as table:
        table.create_index("k" if is_hudi else "id", kind="bloom")
        table.create_index("v" if is_hudi else "name", kind="secondary")
    return served({"a.b.t": {"path": location, "index_path": folder / "index"}}), pa.concat_tables(tables)


def _literal(value):
    if isinstance(value, dt.datetime):
        return f"TIMESTAMPTZ '{value.isoformat()}'"
    if isinstance(value, dt.date):
        return f"DATE '{value}'"
    return f"'{value}'" if isinstance(value, str) else repr(value)


_COMPARED = {EqualTo: "=", NotEqualTo: "<>", LessThan: "<", LessThanOrEqual: "<="}
_COMPARED |= {GreaterThan: ">", GreaterThanOrEqual: ">="}


def _filter(rng, rows, depth=2):
    """(a filter of pyiceberg, the same in DuckDB's SQL)."""
    if depth and rng.random() < 0.5:
        (left, left_sql), (right, right_sql) = _filter(rng, rows, depth - 1), _filter(rng, rows, depth - 1)
        kind, word = rng.choice([(And, "AND"), (Or, "OR")])
        return kind(left, right), f"({left_sql}) {word} ({right_sql})"
    name = rng.choice(rows.column_names)
    values = [value for value in rows.column(name).to_pylist() if value is not None]
    kind = rng.random()
    if kind < 0.1:
        return rng.choice([(IsNull(name), f"{name} IS NULL"), (NotNull(name), f"{name} IS NOT NULL")])
    if kind < 0.3:
        chosen = rng.sample(sorted(set(values)), rng.randrange(2, 4))
        listed = ", ".join(map(_literal, chosen))
        if rng.random() < 0.5:
            return In(name, chosen), f"{name} IN ({listed})"
        return NotIn(name, chosen), f"({name} NOT IN ({listed}) OR {name} IS NULL)"  # pyarrow's NOT IN keeps null
    if kind < 0.4:
        prefix = rng.choice("abc") + str(rng.randrange(3))
        name = "name" if "name" in rows.column_names else "k"
        return StartsWith(name, prefix), f"starts_with({name}, '{prefix}')"
    compared, value = rng.choice(list(_COMPARED)), rng.choice(values)
    if name == "p" and compared is NotEqualTo:  # for a column that files lack, pyiceberg's NULL != 'p1' is true
        compared = EqualTo
    elif name != "p" and rng.random() < 0.2:  # for others it is NULL, as in SQL
        return Not(compared(name, value)), f"NOT ({name} {_COMPARED[compared]} {_literal(value)})"
    return compared(name, value), f"{name} {_COMPARED[compared]} {_literal(value)}"


def _rows_by_manifests(scan):
    """The rows; None if pyiceberg 0.12 fails because it compares a null of a partition."""
    try:
        return sorted_rows(scan.to_arrow())
    except TypeError as error:
        if "NoneType" not in str(error):
            raise
        return None


def test_random_filters(lake):
    uri, rows = lake
    planned, read = (client(uri, mode).load_table(("a", "b", "t")) for mode in ("server", "client"))
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", rows)
    rng, fewer, all_files = random.Random(2), 0, len(planned_paths(planned.scan()))
    assert all_files >= FILES
    for number in range(examples(6)):
        expression, sql = _filter(rng, rows)
        names = rows.column_names if number % 3 else sorted({*rng.sample(rows.column_names, 3), "p"})
        scan = planned.scan(expression, selected_fields=tuple(names))
        found = sorted_rows(scan.to_arrow())
        expected = connection.sql(f"SELECT {', '.join(names)} FROM rows WHERE {sql}").to_arrow_table()
        assert found == sorted_rows(expected), sql
        fewer += len(planned_paths(scan)) < all_files
        if number % every(5) == 0:
            assert _rows_by_manifests(read.scan(expression, selected_fields=tuple(names))) in (found, None), sql
            assert scan.count() == len(found), sql
    assert fewer > examples(6) / 3


def test_a_needle_reads_one_file_of_100(tmp_path):
    rng = random.Random(3)
    ids = [[f"{rng.getrandbits(64):016x}" for _ in range(5)] for _ in range(100)]
    lake = make_lake(tmp_path, ({"id": some, "n": [number] * 5} for number, some in enumerate(ids)))
    with ss.open(lake) as table:
        table.create_index("id", kind="bloom")
    uri = served({"lake.t": lake})
    for mode, count in (("server", 1), ("client", 100)):
        scan = client(uri, mode).load_table("lake.t").scan(EqualTo("id", ids[99][0]))
        assert len(planned_paths(scan)) == count
        assert scan.to_arrow().column("n").to_pylist() == [99]
    assert len(planned_paths(client(uri).load_table("lake.t").scan(EqualTo("id", "0")))) == 0


def test_nan_null_and_zero(tmp_path):
    """Files of one kind of value each: clients keep no row of a file that was left out."""
    files = {"nan": math.nan, "null": None, "zero": 0.0, "negative_zero": -0.0, "one": 1.0}
    for name, value in files.items():
        make_file(
            tmp_path / "lake", f"{name}.parquet", {"x": pa.array([value, value], pa.float64()), "name": [name] * 2}
        )
    with ss.create(tmp_path / "lake") as table:
        table.create_index("x", kind="bloom")
    uri = served({"lake.t": tmp_path / "lake"})
    planned, read = (client(uri, mode).load_table("lake.t") for mode in ("server", "client"))
    tests = [kind("x", value) for kind in _COMPARED for value in (0.0, 1.0, -1.0)]
    tests += [In("x", [0.0, 2.0]), NotIn("x", [0.0, 2.0]), NotIn("x", [1.0, 2.0]), IsNull("x"), NotNull("x")]
    tests += [IsNaN("x"), NotNaN("x")]
    for test in few_of([*tests, *map(Not, tests)], 25):
        assert sorted_rows(planned.scan(test).to_arrow()) == sorted_rows(read.scan(test).to_arrow()), test
    assert planned_paths(planned.scan(EqualTo("x", 1.0))) == ["one.parquet"]
    # In Iceberg's own evaluation NULL != 1, NOT (NULL > 0), and -0.0 < 0.0.
    assert "null.parquet" in planned_paths(planned.scan(NotEqualTo("x", 1.0)))
    assert {"null.parquet", "nan.parquet"} <= {*planned_paths(planned.scan(Not(GreaterThan("x", 0.0))))}
    assert "negative_zero.parquet" in planned_paths(planned.scan(LessThan("x", 0.0)))


def test_types_and_nested_columns(tmp_path):
    rows = pa.table(
        {
            "flag": [True, False, None],
            "tiny": pa.array([1, 2, None], pa.int8()),
            "real": pa.array([0.5, 0.1, None], pa.float32()),
            "cost": pa.array([Decimal("1.50"), Decimal("2.25"), None], pa.decimal128(9, 2)),
            "raw": pa.array([b"a", b"b", None], pa.binary()),
            "moment": pa.array([1, 1_000, None], pa.timestamp("ns")),
            "clock": pa.array([dt.time(1), dt.time(2), None], pa.time64("us")),
            "s": pa.array([{"a": 1, "b": {"c": "x"}}, {"a": 2, "b": None}, None]),
            "tags": pa.array([["x", "y"], [], None]),
            "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "coded": pa.array(["u", "v", None]).dictionary_encode(),
            "list": pa.array([[{"q": 1}], None, None]),
        }
    )
    uri = served({"lake.t": make_lake(tmp_path / "lake", (rows.slice(number, 1) for number in range(3)))})
    planned, read = (client(uri, mode).load_table("lake.t") for mode in ("server", "client"))
    shown = planned.scan().to_arrow()
    assert sorted_rows(shown) == sorted_rows(read.scan().to_arrow())
    for name in set(rows.column_names) - {"moment", "map", "list"}:  # pyiceberg makes [] of a null list of structs
        assert sorted(map(repr, shown.column(name).to_pylist())) == sorted(map(repr, rows.column(name).to_pylist()))
    needles = [
        (EqualTo("flag", True), 1),
        (EqualTo("tiny", 2), 1),
        (EqualTo("real", 0.5), 1),
        (GreaterThan("cost", Decimal("2.00")), 1),
        (EqualTo("s.a", 2), 1),
        (EqualTo("s.b.c", "x"), 1),
        (IsNull("s.a"), 1),
        (IsNull("s.b.c"), 2),
        (GreaterThanOrEqual("moment", dt.datetime(1970, 1, 1, 0, 0, 0, 3)), 0),
        (EqualTo("coded", "v"), 1),
        # Not exactly of the column's type: nothing is pruned, and pyiceberg converts the literal as it does.
        (EqualTo("real", 0.1), 3),
        (EqualTo("moment", dt.datetime(1970, 1, 1, 0, 0, 0, 1)), 2),
    ]
    for test, count in needles:
        assert len(planned_paths(planned.scan(test))) == count, test
        assert sorted_rows(planned.scan(test).to_arrow()) == sorted_rows(read.scan(test).to_arrow()), test
    assert UUID(str(planned.metadata.table_uuid)) == read.metadata.table_uuid
