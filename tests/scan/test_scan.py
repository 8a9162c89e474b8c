"""Scans against brute force: random lakes, changes, indexes and predicates. No row is lost, none is added."""

from __future__ import annotations

import pickle
import sys
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import lakes
from oracle import check_scan
from predicate_strategies import predicates

PACKAGE = Path(ss.__file__).parent


@given(st.data())
@settings(max_examples=examples(5))
def test_a_scan_gives_exactly_the_rows_that_match(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        table, lake = data.draw(lakes(root))
        fresh = ss.open(root)
        for handle in (table, fresh):
            node = data.draw(predicates(handle.schema))
            check_scan(handle, lake.versions[handle.version], node, node)
        assert fresh.verify(deep=True) == []


def test_a_limit_beyond_the_rows_without_columns(tmp_path: Path) -> None:
    """Arrow's slice of a table without columns goes beyond its end."""
    pq.write_table(pa.table({"a": range(3)}), tmp_path / "a.parquet")
    plan = ss.create(tmp_path).scan("a < 2", columns=[], limit=10)
    assert plan.to_table().num_rows == sum(batch.num_rows for batch in plan.to_batches()) == 2
    assert plan.head(5).num_rows == 2 and plan.head(1).num_rows == 1
    assert ss.open(tmp_path).scan(columns=[], order_by="a", limit=2).to_table().num_rows == 2
    assert ss.open(tmp_path).scan("a > 0", order_by="a", limit=1).dataset().count_rows() == 1


def test_head_is_the_first_rows(tmp_path: Path) -> None:
    for number in range(3):
        rows = pa.table({"a": range(10 * number, 10 * number + 10), "s": ["AA", "aA", "b", None, "aa"] * 2})
        pq.write_table(rows, tmp_path / f"{number}.parquet")
    table = ss.create(tmp_path)
    assert table.head(3).num_rows == 3 and table.head().num_rows == 5 and table.head(99).num_rows == 30
    assert table.head(0).schema == table.schema
    plan = table.scan("lower(s) = 'aa' AND a >= 10", columns=["a"])
    assert (
        plan.head(2).num_rows == 2 and plan.head(2).column_names == ["a"] and min(plan.head(2)["a"].to_pylist()) >= 10
    )
    assert plan.head(99).num_rows == plan.count() == 12
    assert table.scan(order_by=[("a", "desc")]).head(2)["a"].to_pylist() == [29, 28]
    assert table.scan(limit=1).head(2).num_rows == 1 == table.lookup([3], on="a").head().num_rows
    for wrong in (-1, True, 1.5, "2", None):
        for each in (plan, table):
            with pytest.raises(ss.InvalidArgumentError, match="head"):
                each.head(wrong)  # type: ignore[arg-type]


def test_fields_of_structs_are_columns_by_their_paths(tmp_path: Path) -> None:
    payload = [{"user": "a", "at": {"x": 1}}, None, {"user": None, "at": None}, {"user": "b", "at": {"x": 4}}]
    pq.write_table(pa.table({"id": range(4), "payload": payload, "a.b": [5, 6, 7, 8]}), tmp_path / "f.parquet")
    table = ss.create(tmp_path)
    plan = table.scan("id < 3", columns=["payload.at.x", "id", "payload.user", "a.b"])
    assert plan.schema.names == list(plan.columns) == ["payload.at.x", "id", "payload.user", "a.b"]
    assert plan.schema.types == [pa.int64(), pa.int64(), pa.string(), pa.int64()]
    wanted = {"payload.at.x": [1, None, None], "id": [0, 1, 2], "payload.user": ["a", None, None], "a.b": [5, 6, 7]}
    assert plan.to_table().to_pydict() == wanted
    assert plan.head(1).to_pydict() == {name: values[:1] for name, values in wanted.items()}
    assert pickle.loads(pickle.dumps(plan)).to_table().to_pydict() == wanted
    assert plan.dataset().to_table(columns=["payload.user"], filter=pc.field("id") == 0).to_pydict() == {
        "payload.user": ["a"]
    }
    assert table.scan("id > 9", columns="payload.user").to_table().schema.names == ["payload.user"]
    assert table.lookup([3], on="id", columns=["payload.user"]).to_table().to_pydict() == {"payload.user": ["b"]}
    ordered = table.scan(order_by=("payload.at.x", "desc"), limit=2, columns=["payload.user"])
    assert ordered.to_table().to_pydict() == {"payload.user": ["b", "a"]}
    for columns in (["payload.no"], ["payload.user", "payload.user"], ["id.x"], ["no"], [3]):
        with pytest.raises(ss.SchemaError):
            table.scan(columns=columns)


_FIELDS = {
    "user": (pa.string(), st.none() | st.text("ab", max_size=3)),
    "at": (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9), "y": st.none() | st.just("y")}),
    ),
    "tags": (pa.list_(pa.int64()), st.none() | st.lists(st.integers(0, 3), max_size=2)),
}


@st.composite
def _payloads(draw: st.DrawFn) -> pa.Array:
    names = draw(st.lists(st.sampled_from(list(_FIELDS)), min_size=1, unique=True))
    kind = pa.struct([(name, _FIELDS[name][0]) for name in names])
    rows = st.none() | st.fixed_dictionaries({name: _FIELDS[name][1] for name in names})
    return pa.array(draw(st.lists(rows, min_size=1, max_size=6)), kind)


def _at(value: object, path: str) -> object:
    for step in path.split("."):
        value = None if value is None else value[step]  # type: ignore[index]
    return value


_PATHS = ["payload.user", "payload.at", "payload.at.x", "payload.tags", "n"]
_WHERES = [None, "n % 2 = 0", "payload.at.y = 'y'", "payload.user > 'a' OR n < 2", "payload.user || 'x' > 'b'"]


@given(
    st.lists(_payloads(), min_size=1, max_size=3),
    st.lists(st.sampled_from(_PATHS), min_size=1, unique=True),
    st.sampled_from(_WHERES),
    st.sampled_from([["n"], ["payload.at.x", "n"]]),
)
@settings(max_examples=examples(5))
def test_fields_alone_are_those_of_the_whole_struct(
    parts: list[pa.Array], columns: list[str], where: str | None, order_by: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        for i, part in enumerate(parts):
            n = pa.array(range(10 * i, 10 * i + len(part)), pa.int64())
            pq.write_table(pa.table({"n": n, "payload": part}), f"{root}/{i}.parquet", row_group_size=4)
        table = ss.create(root)
        try:
            whole = table.scan(where, order_by=order_by).to_table().to_pylist()
            rows = table.scan(where, columns=columns, order_by=order_by)
        except (ss.PredicateError, ss.SchemaError):  # for a field that no file has
            return
        assert rows.to_table().to_pylist() == [{path: _at(row, path) for path in columns} for row in whole]
        unordered = table.scan(where, columns=["n", *(path for path in columns if path != "n")]).to_table()
        assert sorted(unordered.to_pylist(), key=lambda row: row["n"]) == [
            {path: _at(row, path) for path in unordered.column_names} for row in whole
        ]


def test_a_field_of_a_struct_is_read_without_required_fields_next_to_it(tmp_path: Path) -> None:
    def required(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    at = pa.struct([required("x", pa.int64()), required("y", pa.int64())])
    address = pa.struct([required("street", pa.string()), required("n", pa.int64()), ("at", at)])
    schema = pa.schema([("id", pa.int64()), ("address", address)])
    values = [None, {"street": "a", "n": 1, "at": None}, {"street": "b", "n": 2, "at": {"x": 3, "y": 4}}]
    rows = pa.Table.from_pylist([{"id": i, "address": value} for i, value in enumerate(values)], schema=schema)
    pq.write_table(rows, tmp_path / "f.parquet")
    table = ss.create(tmp_path)
    for columns in (["address.street"], ["address.at.y"], ["address.at"], ["address.at", "address.n", "id"]):
        wanted = [{path: _at({"id": i, "address": value}, path) for path in columns} for i, value in enumerate(values)]
        assert table.scan(columns=columns, order_by="id").to_table().to_pylist() == wanted
        assert table.lookup([1], on="id", columns=columns).to_table().to_pylist() == wanted[1:2]
        for where in ("address.n = 2", "lower(address.street) = 'b'"):
            plan = table.scan(where, columns=columns)
            assert plan.to_table().to_pylist() == wanted[2:]
            assert plan.to_table().schema == plan.schema
    assert table.scan(columns=["address.at"]).schema.field("address.at").type == at


def test_a_field_of_a_struct_is_read_without_the_others(tmp_path: Path) -> None:
    payload = pa.array([{"user": f"u{i}", "body": f"{i:0500}", "at": {"x": i, "y": f"{i:0300}"}} for i in range(2000)])
    pq.write_table(pa.table({"n": range(2000), "payload": payload}), tmp_path / "f.parquet", compression="none")
    table = ss.create(tmp_path)
    chunks = pq.read_metadata(tmp_path / "f.parquet").row_group(0)
    sizes = {chunks.column(i).path_in_schema: chunks.column(i).total_compressed_size for i in range(chunks.num_columns)}

    def bytes_read(plan: ss.Plan) -> int:
        before = table.handle.storage.reading()[1]
        assert plan.to_table().num_rows in (1, 1990, 2000)
        return table.handle.storage.reading()[1] - before

    assert bytes_read(table.scan(columns=["payload.user"])) == sizes["payload.user"]
    assert bytes_read(table.scan("payload.at.x >= 10", columns=["payload.user"])) < sizes["payload.at.y"]
    assert bytes_read(table.scan("n = 7", columns=["payload.at.x"])) < sizes["payload.at.y"]
    assert bytes_read(table.scan(columns=["payload.user", "payload"])) > sizes["payload.body"]


@pytest.mark.parametrize("kind, files_max", [(None, 51), ("secondary", 66)])
def test_the_files_of_ours_that_a_scan_by_sql_enters(tmp_path: Path, kind: str | None, files_max: int) -> None:
    """These files show how a scan works: a newcomer has to read them. The aim is 40; never raise a number."""
    for part in range(4):
        rows = range(30_000 * part, 30_000 * part + 30_000)
        table = pa.table(
            {"user": [f"u{row % 997}" for row in rows], "k": rows, "amount": pc.divide(pa.array(rows), 2.0)}
        )
        pq.write_table(table, tmp_path / f"{part}.parquet")
    lake = ss.create(tmp_path)
    if kind is not None:
        lake.create_index("user", kind=kind)
    where = "k = 31000" if kind is None else "user = 'u5'"
    assert lake.scan(where, columns=["k", "amount"]).to_table().num_rows  # what a process does once is done
    lake, entered = ss.open(tmp_path), set[str]()

    def note(frame: object, event: str, argument: object) -> None:
        entered.add(frame.f_code.co_filename)  # type: ignore[attr-defined]

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        lake.scan(where, columns=["k", "amount"]).to_table()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    ours = {name for name in entered if Path(name).is_relative_to(PACKAGE) and "site-packages" not in name}
    assert len(ours - {__file__}) <= files_max, sorted(ours)
