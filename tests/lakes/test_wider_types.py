"""Files with a wider type of a column: a sync widens the table's column, and all that was indexed stays right."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import operator
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

_NAN, _INF = math.nan, math.inf
_DAY = dt.datetime(2024, 1, 5)
_MICROSECOND = dt.timedelta(microseconds=1)

# type -> values, those at its edges among them
_VALUES: dict[pa.DataType, list] = {
    pa.null(): [None],
    pa.int8(): [-128, 127, 0, None],
    pa.uint8(): [0, 255, 128, None],
    pa.int16(): [-(2**15), 2**15 - 1, 128, None],
    pa.int32(): [-(2**31), 2**31 - 1, 128, None],
    pa.uint32(): [0, 2**32 - 1, 2**31, None],
    pa.int64(): [-(2**63), 2**63 - 1, 2**53 + 1, 128, None],
    pa.float32(): [0.1, -0.0, 128.0, _NAN, _INF, None],
    pa.float64(): [0.1, 0.0, 2.0**31, -_INF, _NAN, None],
    pa.decimal128(5, 2): [Decimal("999.99"), Decimal("-999.99"), Decimal("1.10"), Decimal(128), None],
    pa.decimal128(10, 4): [Decimal("999999.9999"), Decimal("1.1001"), Decimal("1.10"), None],
    pa.decimal128(20, 0): [Decimal(10**20 - 1), Decimal(-(2**63)), Decimal(128), None],
    pa.string(): ["", "a", "b" * 40, None],
    pa.large_string(): ["", "a", "c", None],
    pa.timestamp("ms"): [_DAY, dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), None],
    pa.timestamp("us"): [_DAY, _DAY + _MICROSECOND, dt.datetime(1970, 1, 1), None],
    pa.timestamp("ns"): [_DAY, dt.datetime(1970, 1, 1), dt.datetime(2262, 4, 1), None],
    pa.date32(): [_DAY.date(), dt.date(1970, 1, 1), None],
    pa.list_(pa.int32()): [[1], [], None],
    pa.list_(pa.int64()): [[2**40], None],
}
# Every pair of which one type contains the values of both, which is not the first.
_WIDER = {
    (pa.int8(), pa.uint8()): pa.int16(),
    (pa.int16(), pa.uint32()): pa.int64(),
    (pa.int32(), pa.uint32()): pa.int64(),
    (pa.int32(), pa.int64()): pa.int64(),
    (pa.int8(), pa.float32()): pa.float32(),
    (pa.int32(), pa.float32()): pa.float64(),
    (pa.int32(), pa.float64()): pa.float64(),
    (pa.uint32(), pa.float64()): pa.float64(),
    (pa.float32(), pa.float64()): pa.float64(),
    (pa.int64(), pa.decimal128(20, 0)): pa.decimal128(20, 0),
    (pa.int8(), pa.decimal128(5, 2)): pa.decimal128(5, 2),
    (pa.decimal128(5, 2), pa.decimal128(10, 4)): pa.decimal128(10, 4),
    (pa.decimal128(5, 2), pa.decimal128(20, 0)): pa.decimal128(22, 2),
    (pa.string(), pa.large_string()): pa.large_string(),
    (pa.timestamp("ms"), pa.timestamp("us")): pa.timestamp("us"),
    (pa.timestamp("us"), pa.timestamp("ns")): pa.timestamp("ns"),
    (pa.date32(), pa.timestamp("us")): pa.timestamp("us"),
    **{(pa.null(), kind): kind for kind in _VALUES if kind != pa.null()},
}


def _write(lake: Path, name: str, first_id: int, values: pa.Array) -> None:
    ids = pa.array(range(first_id, first_id + len(values)), pa.int64())
    pq.write_table(pa.table({"id": ids, "v": values}), lake / name, row_group_size=2)


def _keys(values: pa.Array) -> list:
    """Values that Python compares as we do: NaN is equal to itself, and above all others."""
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    plain = values.to_pylist()
    if pa.types.is_floating(values.type):
        return [None if v is None else (math.isnan(v), 0.0 if math.isnan(v) else v) for v in plain]
    return plain


def _found(table: ss.Table, where: object) -> list[int]:
    plan = table.scan(where, columns=["id"])
    ids = sorted(plan.to_table().column("id").to_pylist())
    assert plan.count() == len(ids)
    return ids


_OPERATORS: list[Callable] = [operator.eq, operator.lt, operator.ge, operator.ne]


def _check_all(table: ss.Table, values: pa.Array, literals: pa.Array) -> None:
    """Asks for each literal by each operator, and compares with a walk over all values."""
    keys, v = _keys(values), pc.field("v")
    assert _found(table, "v IS NULL") == [i for i, key in enumerate(keys) if key is None]
    assert _found(table, "v IS NOT NULL") == [i for i, key in enumerate(keys) if key is not None]
    if pa.types.is_nested(values.type):
        return
    for scalar, key in zip(literals, _keys(literals), strict=True):
        for compare in _OPERATORS:
            wanted = [i for i, other in enumerate(keys) if other is not None and compare(other, key)]
            assert _found(table, compare(v, scalar)) == wanted, (compare, scalar)
    both = literals.take(pa.array([0, len(literals) - 1]))
    wanted = [i for i, other in enumerate(keys) if other is not None and other in _keys(both)]
    assert _found(table, v.isin(both)) == wanted, both
    if pa.types.is_floating(values.type):
        nans = [i for i, other in enumerate(keys) if other is not None and other[0]]
        assert _found(table, ss.col("v").is_nan()) == nans


@given(
    st.sampled_from(list(_WIDER)),
    st.data(),
    st.lists(st.sampled_from(["bloom", "secondary"]), max_size=2, unique=True),
    st.booleans(),
)
@settings(max_examples=examples(5), phases=[Phase.generate])  # to shrink one takes minutes
def test_indexes_of_before_stay_right_after_a_sync_that_widens(
    kinds: tuple[pa.DataType, pa.DataType], data: st.DataObject, indexes: list[str], refresh: bool
) -> None:
    old, new = kinds
    wider = _WIDER[kinds]
    old_values = [
        pa.array(data.draw(st.lists(st.sampled_from(_VALUES[old]), min_size=1, max_size=4)), old) for _ in range(2)
    ]
    if kinds == (pa.timestamp("us"), pa.timestamp("ns")):  # others would not fit, see below
        old_values = [pa.array([_DAY, None], old), pa.array([dt.datetime(1970, 1, 1)], old)]
    new_values = pa.array(data.draw(st.lists(st.sampled_from(_VALUES[new]), min_size=1, max_size=5)), new)
    parts = [*old_values, new_values, old_values[0]]
    starts = [0, *itertools.accumulate(map(len, parts))]
    with tempfile.TemporaryDirectory() as root:
        lake = Path(root)
        for number in range(2):
            _write(lake, f"{number}.parquet", starts[number], parts[number])
        table = ss.create(lake)
        for kind in indexes if old != pa.null() and not pa.types.is_nested(old) else ():
            table.create_index("v", kind=kind)
        _write(lake, "2.parquet", starts[2], parts[2])
        result = table.sync(refresh=refresh)
        assert (result.quarantined, list(result.widened)) == ({}, ["v"])
        assert table.schema.field("v").type == wider
        _write(lake, "3.parquet", starts[3], parts[3])  # others write the old type still
        assert table.sync(refresh=refresh).added == ("3.parquet",)
        values = pa.concat_arrays([part.cast(wider) for part in parts])
        rows = table.scan().to_table().sort_by("id").column("v").combine_chunks()
        assert _keys(rows) == _keys(values)
        literals = values.drop_null()
        if len(literals):
            chosen = data.draw(st.lists(st.integers(0, len(literals) - 1), min_size=1, max_size=2))
            _check_all(table, values, literals.take(pa.array(chosen)))
        assert table.verify(deep=True) == []


def test_a_type_that_no_type_contains_is_quarantined_and_widens_nothing(tmp_path: Path) -> None:
    _write(tmp_path, "0.parquet", 0, pa.array([1], pa.int64()))
    table = ss.create(tmp_path)
    _write(tmp_path, "1.parquet", 1, pa.array([1.5]))
    _write(tmp_path, "2.parquet", 2, pa.array(["text"]))
    result = table.sync()
    assert (set(result.quarantined), result.widened) == ({"1.parquet", "2.parquet"}, {})
    assert table.schema.field("v").type == pa.int64()


def test_new_types_quarantine_keeps_the_columns(tmp_path: Path) -> None:
    _write(tmp_path, "0.parquet", 0, pa.array([1], pa.int32()))
    table = ss.create(tmp_path)
    _write(tmp_path, "1.parquet", 1, pa.array([2**40]))
    result = table.sync(new_types="quarantine")
    assert (list(result.quarantined), table.schema.field("v").type) == (["1.parquet"], pa.int32())
    assert table.sync().added == ("1.parquet",) and _found(table, f"v = {2**40}") == [1]
    with pytest.raises(ss.InvalidArgumentError, match="new_types="):
        table.sync(new_types="cast")  # type: ignore[arg-type]


def test_a_file_that_is_quarantined_in_any_case_widens_nothing(tmp_path: Path) -> None:
    for folder, kind in (("k=1", pa.int32()), ("k=2", pa.int32()), ("k=1/j=2", pa.int64())):
        (tmp_path / folder).mkdir(exist_ok=True)
        if folder == "k=1/j=2":
            table = ss.create(tmp_path)
        _write(tmp_path, f"{folder}/f.parquet", 0, pa.array([1], kind))
    result = table.sync()
    assert (list(result.quarantined), result.widened) == (["k=1/j=2/f.parquet"], {})


def test_columns_are_adopted_and_widened_in_one_version(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1], pa.int8()), "k": [1]}), tmp_path / "0.parquet")
    table = ss.create(tmp_path)
    pq.write_table(pa.table({"a": pa.array([300], pa.int16()), "k": [2], "b": ["x"]}), tmp_path / "1.parquet")
    result = table.sync()
    assert (result.version, result.new_columns, result.widened) == (2, ("b",), {"a": "int16"})
    assert table.scan("a = 300 AND b = 'x'").count() == table.scan("a = 1 AND b IS NULL").count() == 1
    assert ss.open(tmp_path, version=1).schema.field("a").type == pa.int8()


@pytest.mark.parametrize("old", ["live", "empty"])
def test_nanoseconds_are_adopted_if_all_older_timestamps_fit_them(tmp_path: Path, old: str) -> None:
    values = [dt.datetime(1600, 1, 1)] if old == "live" else []
    _write(tmp_path, "0.parquet", 0, pa.array(values, pa.timestamp("us")))
    table = ss.create(tmp_path)
    _write(tmp_path, "1.parquet", 5, pa.array([_DAY], pa.timestamp("ns")))
    result = table.sync()
    assert list(result.quarantined) == (["1.parquet"] if old == "live" else [])
    assert table.scan().count() == 1


def test_an_empty_file_of_another_unit_fits(tmp_path: Path) -> None:
    for number, unit in enumerate(["ns", "us", "ms", "s"]):
        values = pa.array([_DAY] if number == 0 else [], pa.timestamp(unit))
        _write(tmp_path, f"{number}.parquet", 0, values)
        if number == 1:
            table = ss.create(tmp_path)
    assert (table.sync().quarantined, table.files().num_rows) == ({}, 4)


def test_fields_of_structs_become_wider_and_get_types(tmp_path: Path) -> None:
    structs = pa.array([{"x": None, "y": 1}], pa.struct([("x", pa.null()), ("y", pa.int8())]))
    pq.write_table(pa.table({"s": structs, "id": [0]}), tmp_path / "0.parquet")
    table = ss.create(tmp_path)
    pq.write_table(pa.table({"s": [{"y": 2**40, "x": "text", "z": True}], "id": [1]}), tmp_path / "1.parquet")
    assert table.sync().quarantined == {}
    for where, ids in {
        "s.x = 'text'": [1],
        "s.x IS NULL": [0],
        "s.z": [1],
        "s.z IS NULL": [0],
        f"s.y = {2**40}": [1],
        "s.y = 1": [0],
        "s.x = 'other'": [],
    }.items():
        assert _found(table, where) == ids, where
    assert table.scan("s.x = 'other'").files().num_rows == 0


@pytest.mark.parametrize("how", ["sync", "add_files"])
def test_a_file_of_polars_next_to_files_of_pyarrow(tmp_path: Path, how: str) -> None:
    pl = pytest.importorskip("polars")
    pq.write_table(pa.table({"id": [0], "v": ["a"], "l": [["x"]], "s": [{"t": "p"}]}), tmp_path / "0.parquet")
    table = ss.create(tmp_path)
    table.create_index("v", kind="bloom")
    table.create_index("v", kind="secondary")
    pl.DataFrame({"id": [1], "v": ["b"], "l": [["y"]], "s": [{"t": "q"}]}).write_parquet(tmp_path / "1.parquet")
    if how == "sync":
        assert table.sync().quarantined == {}
    else:
        with table.transaction() as tx:
            tx.add_files(["1.parquet"])
    assert table.schema.field("v").type == (pa.large_string() if how == "sync" else pa.string())
    for _ in range(2):
        assert (_found(table, None), _found(table, "v = 'a'"), _found(table, "v = 'b'")) == ([0, 1], [0], [1])
        assert (_found(table, "s.t = 'q'"), _found(table, "v < 'b'")) == ([1], [0])
        assert table.scan("v = 'b'").to_table()["l"].to_pylist() == [["y"]]
        table.optimize()


def test_an_index_of_texts_is_idle_once_their_column_is_binary(tmp_path: Path) -> None:
    _write(tmp_path, "0.parquet", 0, pa.array(["hello"]))
    table = ss.create(tmp_path)
    table.create_index("v", kind="ngram")
    _write(tmp_path, "1.parquet", 1, pa.array([b"\xff"]))
    assert table.sync(refresh=True).widened == {"v": "binary"}
    table.refresh_index("v", kind="ngram")
    table.optimize()
    assert _found(table, "v = 'hello'") == [0]


def test_add_files_names_the_widening_that_a_file_needs(tmp_path: Path) -> None:
    _write(tmp_path, "0.parquet", 0, pa.array([1], pa.int32()))
    table = ss.create(tmp_path)
    _write(tmp_path, "1.parquet", 1, pa.array([2**40]))
    with (
        pytest.raises(ss.SchemaError, match=r"1\.parquet: .*alter\(widen=\{'v': \.\.\.\}\) to int64"),
        table.transaction() as tx,
    ):
        tx.add_files(["1.parquet"])
    table.alter(widen={"v": pa.int64()})
    with table.transaction() as tx:
        tx.add_files(["1.parquet"])
    assert (_found(table, f"v = {2**40}"), _found(table, "v = 1")) == ([1], [0])
