"""`scan(order_by=, limit=)`, `count(by=)` and `distinct`: exact, whatever decides; and what they do not read."""

from __future__ import annotations

import functools
import itertools
import math
import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_in_use import kernels
from lake_strategies import change_index, lakes, make_file
from oracle import Lake
from predicate_strategies import compared, leaf_columns, predicates, row_matches, rows_of
from skipstone.engine.predicates import ast
from skipstone.engine.scan import group_counts

WHERE = st.just(ast.Constant(True))
READERS = ("auto", "pyarrow", "duckdb")


# -- against brute force ----------------------------------------------------------------------------------------------


def _order_of(a: object, b: object, is_max: bool, nulls_first: bool) -> int:
    if a is None or b is None:
        if a is b:
            return 0
        return -1 if (a is None) == nulls_first else 1
    if compared("=", a, b):
        return 0
    return -1 if bool(compared(">", a, b)) == is_max else 1


def _sorted(rows: list[dict], keys: list[tuple[str, bool, bool]]) -> list[dict]:
    def compare(one: dict, other: dict) -> int:
        for column, is_max, nulls_first in keys:
            order = _order_of(one[column], other[column], is_max, nulls_first)
            if order:
                return order
        return 0

    return sorted(rows, key=functools.cmp_to_key(compare))


def _plain(value: object) -> object:
    return "nan" if value != value else 0.0 if value == 0 else value


@st.composite
def _orders(draw: st.DrawFn, schema: pa.Schema) -> list[tuple[str, bool, bool]]:
    columns = draw(st.lists(st.sampled_from(sorted(leaf_columns(schema))), min_size=1, max_size=3, unique=True))
    return [(column, draw(st.booleans()), draw(st.booleans())) for column in columns]


def _said(keys: list[tuple[str, bool, bool]]) -> list[tuple[str, str, str]]:
    return [(c, "desc" if is_max else "asc", "nulls_first" if first else "nulls_last") for c, is_max, first in keys]


def _check_order(
    table: ss.Table, lake: Lake, node: ast.Node, keys: list, limit: int | None, reader: str, columns: list[str] | None
) -> None:
    matching = [row for row in lake.rows(table.version) if row_matches(node, row) is True]
    wanted = _sorted(matching, keys)[:limit]
    every = rows_of(table.scan(node, order_by=_said(keys), limit=limit, reader=reader).to_table())
    assert not Counter(map(repr, every)) - Counter(map(repr, matching))
    got = rows_of(table.scan(node, columns, order_by=_said(keys), limit=limit, reader=reader).to_table())

    def shown(rows: list[dict]) -> list[list]:
        return [[_plain(row[column]) for column, _, _ in keys] for row in rows]

    assert shown(every) == shown(got) == shown(wanted), (node, keys, limit)
    chosen = [{name: row[name] for name in got[0]} for row in matching] if got else []
    assert not Counter(map(repr, got)) - Counter(map(repr, chosen))


@given(st.data())
@settings(max_examples=examples(3))
def test_the_first_rows_are_those_of_all_sorted(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        table, lake = data.draw(lakes(root))
        keys = data.draw(_orders(table.schema))
        limit = data.draw(st.none() | st.integers(0, 20))
        tops = {column.split(".")[0] if column not in table.schema.names else column for column, _, _ in keys}
        with kernels(are_used=data.draw(st.booleans())):
            node = data.draw(WHERE | predicates(table.schema))
            for reader in READERS:
                for columns in (None, sorted(tops)):
                    _check_order(table, lake, node, keys, limit, reader, columns)
            change_index(data.draw, table, "secondary")
            column = data.draw(st.sampled_from(sorted(leaf_columns(table.schema))))
            for is_max in (False, True):
                keys = [(column, is_max, data.draw(st.booleans()))]
                _check_order(table, lake, ast.Constant(True), keys, limit, data.draw(st.sampled_from(READERS)), None)


@given(st.data())
@settings(max_examples=examples(4))
def test_groups_are_counted_as_by_hand(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        table, lake = data.draw(lakes(root))
        if data.draw(st.booleans()):
            change_index(data.draw, table, "secondary")
        columns = data.draw(st.lists(st.sampled_from(sorted(leaf_columns(table.schema))), min_size=1, max_size=2))
        columns = list(dict.fromkeys(columns))
        node = data.draw(WHERE | predicates(table.schema))
        matching = [row for row in lake.rows(table.version) if row_matches(node, row) is True]
        wanted = Counter(tuple(_plain(row[column]) for column in columns) for row in matching)
        merges_at = data.draw(st.sampled_from([0, 1 << 22]))
        with kernels(are_used=data.draw(st.booleans())), pytest.MonkeyPatch.context() as patch:
            patch.setattr(group_counts, "_WAITING_ROWS_MAX", merges_at)
            for reader in READERS:
                groups = table.scan(node, limit=1, reader=reader).count(by=columns)
                values = rows_of(groups.select(range(len(columns))))
                got = [tuple(_plain(row[column]) for column in columns) for row in values]
                assert len(set(got)) == len(got)
                assert dict(zip(got, groups.column(len(columns)).to_pylist(), strict=True)) == dict(wanted)
                assert values == _sorted(values, [(column, False, False) for column in columns])
                assert table.scan(node, reader=reader).distinct(columns).num_rows == len(wanted)
                assert table.scan(node, reader=reader).count() == len(matching)


# -- what is read, and what is not ------------------------------------------------------------------------------------


def _row_groups_read(plan: ss.Plan) -> int:
    return [step.went_out for step in plan.steps if step.name == "rows"][-1]


@pytest.fixture
def sorted_lake(tmp_path: Path) -> Path:
    for number in range(20):
        columns = {
            "day": [f"d{number:02d}"] * 10,
            "ts": [100 * number + 7 * i for i in range(10)],
            "code": random.Random(number).sample(range(10_000), 10),
            "wide": ["x" * 200] * 10,
        }
        make_file(tmp_path, f"{number:02d}.parquet", columns, row_group_size=5)
    return tmp_path


def test_the_newest_rows_are_read_of_the_newest_files(sorted_lake: Path) -> None:
    table = ss.create(sorted_lake)
    plan = table.scan(order_by=("ts", "desc"), limit=3, columns=["ts", "day"])
    assert plan.to_table().to_pydict() == {"ts": [1963, 1956, 1949], "day": ["d19"] * 3}
    assert _row_groups_read(plan) == 1
    plan = table.scan("ts < 500", order_by=[("day", "desc"), "ts"], limit=12, columns=["ts"])
    assert plan.to_table().column("ts").to_pylist() == [*range(400, 470, 7), 300, 307]
    assert table.scan(order_by="ts", columns=["ts"]).to_table().column("ts").to_pylist()[:2] == [0, 7]
    assert table.scan(order_by="ts", limit=0).to_table().num_rows == 0


def test_row_groups_in_which_no_row_matches_after_the_first_rows(tmp_path: Path) -> None:
    for number in range(20):
        values = {"ts": [number, number + 1, 1000 + number], "k": [0, 10, 10 if number else 5]}
        make_file(tmp_path, f"{number:02d}.parquet", values)
    table = ss.create(tmp_path)
    assert table.scan("k = 5", order_by="ts", limit=1).to_table().to_pydict() == {"ts": [1000], "k": [5]}


def test_rows_that_an_index_names_of_which_none_matches(tmp_path: Path) -> None:
    rows = {"a": pa.array([5, None, -128, None], pa.int8()), "b": pa.array([None, None, None, 1], pa.int32())}
    make_file(tmp_path, "a.parquet", rows)
    table = ss.create(tmp_path)
    table.create_index("b", kind="secondary")
    assert table.scan("a > 0 AND b = 1", order_by="b", limit=1).to_table().num_rows == 0


def test_half_floats_in_order(tmp_path: Path) -> None:
    for number in range(20):
        halves = pa.array(np.array([number, 100 - number, np.nan], np.float16), pa.float16(), from_pandas=False)
        make_file(tmp_path, f"{number:02d}.parquet", {"h": halves, "k": [0, 5, 10]})
    table = ss.create(tmp_path)
    for order, wanted in (("asc", [81.0, 82.0]), ("desc", [100.0, 99.0])):
        plan = table.scan("k = 5", order_by=("h", order), limit=2, columns=["h"])
        assert [float(h) for h in plan.to_table().column("h").to_pylist()] == wanted


def test_a_secondary_index_names_the_first_rows_of_scattered_values(sorted_lake: Path) -> None:
    table = ss.create(sorted_lake)
    table.create_index("code", kind="secondary")
    every = sorted(table.scan(columns=["code"]).to_table().column("code").to_pylist())
    for order, wanted in (("asc", every[:4]), ("desc", every[:-5:-1])):
        plan = table.scan(order_by=("code", order), limit=4, columns=["code"])
        assert plan.to_table().column("code").to_pylist() == wanted
        assert _row_groups_read(plan) == 0
        assert "secondary(code)" in plan.explain()
    make_file(sorted_lake, "late.parquet", {"code": [None, 20_000], "ts": [1, 2], "day": ["a", "b"]})
    table.sync()  # the commit keeps the index; files that it does not cover are read
    table.create_index("ts", kind="secondary", maintain="refresh")
    make_file(sorted_lake, "later.parquet", {"code": [-1], "ts": [5000], "day": ["c"]})
    table.sync()
    assert table.scan(order_by=("ts", "desc"), limit=2).to_table().column("ts").to_pylist() == [5000, 1963]
    nulls = table.scan(order_by=("code", "asc", "nulls_first"), limit=2).to_table().column("code")
    assert nulls.to_pylist() == [None, -1]


def test_a_secondary_index_on_a_field_names_the_first_rows(tmp_path: Path) -> None:
    for n in range(3):
        make_file(tmp_path, f"{n}.parquet", {"n": [n, n + 3], "st": [{"a": 5 - n}, {"a": None}]})
    table = ss.create(tmp_path)
    table.create_index("st.a", kind="secondary")
    for columns in (None, ["n"], ["st.a"]):
        rows = table.scan(order_by="st.a", limit=2, columns=columns).to_table()
        assert rows.column(0).to_pylist() == ([3, 4] if columns == ["st.a"] else [2, 1])


def test_what_is_read_later_of_the_first_rows_belongs_to_them(tmp_path: Path) -> None:
    """Of row groups with few, many, and few winners; -0.0 and NaN as the files have them; nulls; deleted rows apart."""
    values = [float(i) if i % 20 == 0 or 200 <= i < 400 else -float(i) for i in range(600)]
    values[1], values[2], values[3], values[4] = -0.0, 0.0, math.nan, None
    notes = [f"note {i}" for i in range(600)]
    make_file(tmp_path, "a.parquet", {"v": values, "note": notes}, row_group_size=200)
    make_file(tmp_path, "b.parquet", {"v": [1e6, -1e6], "note": ["most", "least"]})
    table = ss.create(tmp_path)
    for index in (False, True):
        if index:
            table.create_index("v", kind="secondary")
        for order, limit in (("desc", 230), ("asc", 90)):
            rows = table.scan(order_by=("v", order), limit=limit, columns=["v", "note"]).to_table()
            assert rows.num_rows == limit
            for value, note in zip(*rows.to_pydict().values(), strict=True):
                if note in ("most", "least"):
                    assert value == {"most": 1e6, "least": -1e6}[note]
                else:
                    assert repr(value) == repr(values[int(note[5:])])


def test_a_limit_reads_few_files(sorted_lake: Path) -> None:
    plan = ss.create(sorted_lake).scan("code >= 0", limit=2)
    assert plan.to_table().num_rows == 2
    (step,) = (step for step in plan.steps if step.name == "rows")
    assert step.came_in <= 10


def test_groups_of_one_value_are_counted_without_a_data_file(sorted_lake: Path) -> None:
    table = ss.create(sorted_lake)
    for path in sorted_lake.rglob("*.parquet"):
        path.unlink()
    table = ss.open(sorted_lake, on_stale="ignore")
    assert table.scan("day < 'd02'").count(by="day").to_pydict() == {"day": ["d00", "d01"], "count": [10, 10]}
    assert table.scan().distinct("day").to_pylist() == [f"d{i:02d}" for i in range(20)]
    assert table.scan("day = 'x'").count(by=["day"]).num_rows == 0
    with pytest.raises(ss.NotReadableError):
        table.scan().count(by="day", check=True)
    with pytest.raises(ss.NotReadableError):
        table.scan().count(by="ts")


def test_the_first_rows_and_extremes_of_files_of_narrower_types(tmp_path: Path) -> None:
    kinds = {"n": [pa.int64(), pa.int32()], "f": [pa.float64(), pa.float32()]}
    kinds["d"] = [pa.decimal128(21, 2), pa.decimal256(45, 6)]  # bounds of 16 and of 32 bytes
    for number in range(6):
        values = pa.array([number - 3 + 7 * i for i in range(20)])
        columns = {name: values.cast(types[number % 2]) for name, types in kinds.items()}
        make_file(tmp_path, f"{number}.parquet", columns, row_group_size=5)
    table = ss.create(tmp_path)
    every = sorted(number - 3 + 7 * i for number in range(6) for i in range(20))
    for name in kinds:
        assert table.scan(order_by=name, limit=9).to_table()[name].to_pylist() == every[:9]
        assert table.scan(order_by=(name, "desc"), limit=9).to_table()[name].to_pylist() == every[:-10:-1]
        assert (table.scan(f"{name} > 0").min(name), table.scan(f"{name} < 9").max(name)) == (1, 8)


def test_many_unlike_dictionaries_add_no_value_that_no_row_has(tmp_path: Path) -> None:
    """Each file has the values in another order, and so another dictionary."""
    actions = ["view", "buy", "refund", "login", "click"]
    for number, order in enumerate(itertools.islice(itertools.permutations(actions), 70)):
        make_file(tmp_path, f"{number}.parquet", {"action": list(order) * 40})
    table = ss.create(tmp_path)
    assert table.scan().distinct("action").to_pylist() == sorted(actions)
    groups = table.scan().count(by="action").to_pydict()
    assert groups == {"action": sorted(actions), "count": [70 * 40] * 5}


def test_a_secondary_index_counts_values_that_repeat(tmp_path: Path) -> None:
    for number in range(3):
        make_file(tmp_path, f"{number}.parquet", {"kind": [None, "a", "b", "a"] * 50, "n": list(range(200))})
    table = ss.create(tmp_path)
    table.create_index("kind", kind="secondary")
    table.create_index("n", kind="secondary")
    wanted = {"kind": ["a", "b", None], "count": [300, 150, 150]}
    assert table.scan("n < 100").count(by="kind").column("count").to_pylist() == [150, 75, 75]
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    table = ss.open(tmp_path, on_stale="ignore")
    plan = table.scan()
    assert plan.count(by="kind").to_pydict() == wanted
    assert [step.index for step in plan.steps if step.name == "rows"] == ["secondary(kind)"]
    with pytest.raises(ss.NotReadableError):  # values that hardly repeat are counted by reading them
        table.scan().count(by="n")


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order_by", [[], 5, [("ts", "down")], [("ts", "asc", "desc")], ["ts", "ts"], [["ts", 1]]])
def test_an_order_that_is_none_is_refused(sorted_lake: Path, order_by: object) -> None:
    with pytest.raises(ss.InvalidArgumentError):
        ss.create(sorted_lake).scan(order_by=order_by)


def test_columns_that_are_not_there_are_refused(sorted_lake: Path) -> None:
    table = ss.create(sorted_lake)
    with pytest.raises(ss.SchemaError):
        table.scan(order_by="nope")
    with pytest.raises(ss.SchemaError):
        table.scan().count(by="nope")
    with pytest.raises(ss.InvalidArgumentError):
        table.scan().count(by=[])
