"""Bad files stop neither a sync nor a listing: they are quarantined, shown, and tried again."""

from __future__ import annotations

import decimal
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st


def _write(lake: Path, name: str, values: list, day: int = 1) -> Path:
    path = lake / f"day={day}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": values}), path)
    return path


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    _write(tmp_path, "one.parquet", [1, 2])
    _write(tmp_path, "two.parquet", [3], day=2)
    return tmp_path


def _bad(lake: Path) -> dict[str, str]:
    """Files of every kind that is quarantined: path -> the reason."""
    whole = _write(lake, "half.parquet", [7]).read_bytes()
    (lake / "day=1" / "half.parquet").write_bytes(whole[:-5])
    (lake / "day=1" / "text.parquet").write_text("no Parquet at all")
    _write(lake, "type.parquet", ["text"])
    for folder in ("day=soon", "date=1", "day=3/hour=4"):
        (lake / folder).mkdir(parents=True)
        pq.write_table(pa.table({"a": [9]}), lake / folder / "key.parquet")
    return {
        "day=1/half.parquet": "not a whole Parquet file",
        "day=1/text.parquet": "Parquet",
        "day=1/type.parquet": "column 'a' is string, the table's is int64",
        "day=soon/key.parquet": "'soon' is not a int32",
        "date=1/key.parquet": "does not have the table's keys",
        "day=3/hour=4/key.parquet": "does not have the table's keys",
    }


def _values(table: ss.Table) -> list[int]:
    return sorted(table.scan().to_table().column("a").to_pylist())


def test_bad_files_do_not_stop_a_sync_and_are_added_once_they_fit(lake: Path) -> None:
    table = ss.create(lake)
    bad = _bad(lake)
    _write(lake, "good.parquet", [4], day=3)
    made = table.sync()
    assert isinstance(made, ss.SyncResult)
    assert (made, made.version, table.version) == (2, 2, 2)
    assert (made.added, made.removed) == (("day=3/good.parquet",), ())
    assert set(made.quarantined) == set(bad)
    for path, reason in bad.items():
        assert reason in made.quarantined[path], path
    assert _values(table) == [1, 2, 3, 4]
    assert {(f.kind, f.path) for f in table.verify()} == {("quarantined", path) for path in bad}
    remarks = table.scan().explain()
    assert "day=1/half.parquet: not a whole Parquet file" in remarks
    assert "and 3 more files" in remarks
    assert pickle.loads(pickle.dumps(made)).quarantined == made.quarantined
    again = ss.open(lake).sync()
    assert (again, again.added, again.removed, again.quarantined) == (made, (), (), made.quarantined)
    _write(lake, "half.parquet", [7])
    _write(lake, "type.parquet", [8])
    assert table.sync().added == ("day=1/half.parquet", "day=1/type.parquet")
    assert _values(table) == [1, 2, 3, 4, 7, 8]
    for path in bad.keys() - {"day=1/half.parquet", "day=1/type.parquet"}:
        (lake / path).unlink()
    assert table.sync().quarantined == {}
    assert table.verify() == []


def test_a_strict_handle_raises_instead(lake: Path) -> None:
    ss.create(lake)
    strict = ss.open(lake, strict=True)
    odd = _write(lake, "type.parquet", ["text"])
    with pytest.raises(ss.SchemaError, match=r"day=1/type\.parquet: column 'a' is string"):
        strict.sync()
    odd.write_bytes(b"PAR1")
    with pytest.raises(ss.CorruptionError, match=r"day=1/type\.parquet"):
        strict.sync()
    assert ss.open(lake).version == 1


@pytest.mark.parametrize("how", ["cut", "type"])
def test_rule_56_a_live_file_that_a_bad_one_replaced_stays_live_and_raises(lake: Path, how: str) -> None:
    table = ss.create(lake)
    if how == "cut":
        (lake / "day=1" / "one.parquet").write_bytes(b"PAR1")
    else:
        _write(lake, "one.parquet", ["text"])
    _write(lake, "good.parquet", [4], day=3)
    made = table.sync()
    assert (made.added, made.removed, list(made.quarantined)) == (("day=3/good.parquet",), (), ["day=1/one.parquet"])
    assert "day=1/one.parquet" in table.files().column("path").to_pylist()
    with pytest.raises(ss.NotReadableError, match=r"day=1/one\.parquet"):
        table.scan().to_table()
    assert sorted(table.scan("day > 1").to_table().column("a").to_pylist()) == [3, 4]
    assert table.sync() == made
    _write(lake, "one.parquet", [10])
    made = table.sync()
    assert (made.added, made.removed) == (("day=1/one.parquet",), ("day=1/one.parquet",))
    assert _values(table) == [3, 4, 10]


def test_bad_files_do_not_stop_a_listing_create(lake: Path) -> None:
    for number in range(9):
        _write(lake, f"good-{number}.parquet", [0], day=4)
    bad = _bad(lake)
    del bad["day=soon/key.parquet"]  # a key of texts, then: every value fits
    with pytest.raises(ss.SchemaError) as refused:
        ss.create(lake)
    assert "3 of its 15 files do not fit" in str(refused.value) and 'on_misfit="quarantine"' in str(refused.value)
    assert all(path in str(refused.value) for path in bad if "half" not in path and "text" not in path)
    assert not list((lake / ".skipstone").rglob("*.json"))
    with pytest.raises(ss.InvalidArgumentError, match="on_misfit="):
        ss.create(lake, on_misfit="ignore")  # type: ignore[arg-type]
    table = ss.create(lake, on_misfit="quarantine")
    assert {f.path for f in table.verify()} == set(bad)
    assert table.schema.field("a").type == pa.int64()
    assert table.scan().count() == 13
    assert table.sync() == 1


def test_a_create_refuses_types_of_equally_many_files(tmp_path: Path) -> None:
    _write(tmp_path, "one.parquet", [1])
    _write(tmp_path, "two.parquet", ["text"])
    with pytest.raises(ss.SchemaError, match=r"'a' is string in .*two\.parquet"):
        ss.create(tmp_path)


def test_the_statistics_of_files_next_to_bad_ones_are_their_own(lake: Path) -> None:
    """Quarantined files are between others in the task that read them."""
    table = ss.create(lake)
    for number in range(6):
        _write(lake, f"n{number}.parquet", [str(number)] if number % 2 else [100 * number, 100 * number + 9], day=5)
    table.sync()
    for number in (0, 2, 4):
        path = f"day=5/n{number}.parquet"
        assert table.scan(f"a = {100 * number + 9}").row_groups().to_pylist() == [{"path": path, "row_group": 0}]
    assert table.scan().max("a") == 409
    assert [f.kind for f in table.verify(deep=True)] == ["quarantined"] * 3


_NUMBERS = {
    pa.int8(): [-1, 5, None],
    pa.int32(): [2**31 - 1, 0],
    pa.int64(): [2**53 + 1, 3, None],
    pa.float32(): [0.5, None, -1.0],
    pa.float64(): [2.0**53, 0.1],
    pa.decimal128(4, 1): [decimal.Decimal("2.5"), None],
}


@given(
    st.lists(
        st.tuples(st.sampled_from(["p=1", "p=2", "q=1", "p=1/q=2"]), st.sampled_from(list(_NUMBERS))),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 5),
    st.sampled_from(["x > 1", "x = 9007199254740992", "NOT x < 3", "x IS NULL OR p = '2'", "x <= 0.5"]),
)
@settings(max_examples=examples(15))
def test_files_of_other_keys_and_types_are_read_exactly_or_quarantined(
    files: list[tuple[str, pa.DataType]], at_first: int, where: str
) -> None:
    with tempfile.TemporaryDirectory() as root:
        values: dict[str, list] = {}

        def write(parts: list[tuple[str, pa.DataType]]) -> None:
            for folder, kind in parts:
                path = f"{folder}/{len(values)}.parquet"
                Path(root, folder).mkdir(parents=True, exist_ok=True)
                column = pa.array(_NUMBERS[kind], kind)
                pq.write_table(pa.table({"x": column}), f"{root}/{path}")
                values[path] = column.to_pylist()

        write(files[:at_first])
        try:
            table = ss.create(root, on_misfit="quarantine")
        except ss.NotATableError:
            assert not values
            return
        except ss.SchemaError:  # as many files of one kind as of the other
            assert len(values) > 1
            return
        write(files[at_first:])
        quarantined = table.sync().quarantined
        live = table.files().column("path").to_pylist()
        assert sorted([*live, *quarantined]) == sorted(values)
        matching = []
        for path in live:
            p = path.split("/")[0].removeprefix("p=")
            for x in values[path]:
                matching += [x] if _matches(where, x, p) else []
        try:
            plan = table.scan(where)
        except ss.PredicateError:  # if no file has the key
            return
        assert _numbers(plan.to_table().column("x").to_pylist()) == _numbers(matching)
        assert plan.count() == len(matching)


def _numbers(values: list) -> list[decimal.Decimal | None]:
    return sorted([None if x is None else decimal.Decimal(x) for x in values], key=lambda x: (x is None, x or 0))


def _matches(where: str, x: object, p: str) -> bool:
    """The predicate on one row, over exact numbers."""
    if where.startswith("x IS NULL"):
        return x is None or p == "2"
    if x is None:
        return False
    number = decimal.Decimal(x)  # type: ignore[arg-type]
    return {
        "x > 1": number > 1,
        "x = 9007199254740992": number == 9007199254740992,
        "NOT x < 3": number >= 3,
        "x <= 0.5": number <= decimal.Decimal("0.5"),
    }[where]


# -- messages for users ---------------------------------------------------------------------------------------------


def _warnings_of(query: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        query()
    return [str(warning.message) for warning in seen if issubclass(warning.category, ss.SkipstoneWarning)]


_QUERIES: dict[str, Callable[[ss.Table], object]] = {
    "scan": lambda table: table.scan("a = 1").count(),
    "lookup": lambda table: table.lookup([1], on="a").to_table(),
    "dataset": lambda table: table.dataset().count_rows(),
    "head": lambda table: table.head(1),
}


@pytest.mark.parametrize("query", _QUERIES)
def test_a_query_warns_once_of_the_rows_that_are_missing(lake: Path, query: str) -> None:
    table = ss.create(lake)
    assert _warnings_of(lambda: _QUERIES[query](table)) == []
    _write(lake, "type.parquet", ["text"] * 1000)
    (lake / "day=1" / "half.parquet").write_bytes(b"PAR1")
    table.sync()
    for handle in (table, ss.open(lake)):
        (message,) = _warnings_of(lambda handle=handle: _QUERIES[query](handle))
        assert "2 files are quarantined" in message and "1,000 rows" in message
        assert "the rows of files that cannot be read (1)" in message and "sync() tries them again" in message
        assert _warnings_of(lambda handle=handle: _QUERIES[query](handle)) == []
    assert _warnings_of(lambda: _QUERIES[query](ss.open(lake, version=1))) == []
    with pytest.raises(ss.NotReadableError, match="2 files are quarantined") as error:
        _QUERIES[query](ss.open(lake, strict=True))
    assert error.value.paths == ["day=1/half.parquet", "day=1/type.parquet"]


def test_a_fallback_listing_quarantines_misfits_and_warns(lake: Path) -> None:
    _write(lake, "type.parquet", ["text"])
    with pytest.warns(ss.SkipstoneWarning, match="no index"):
        table = ss.open(lake, fallback="list")
    (message,) = _warnings_of(lambda: table.scan().count())
    assert "1 file is quarantined, so answers lack 1 row;" in message
