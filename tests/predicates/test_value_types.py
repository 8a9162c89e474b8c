"""Every type that a column may have is compared by value, or refused by one of our errors that names it (rule 43)."""

from __future__ import annotations

import datetime as dt
import decimal
import operator
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from library_versions import array_of, cases, has
from skipstone import col
from skipstone.engine.parquet import footer_bytes, kernels_footer

IDS = [uuid.UUID(int=n) for n in (3, 1, 2**127)]


class Thirds(pa.ExtensionType):
    """What another package may register: its integers stand for thirds."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "example.thirds")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Thirds:
        return cls()

    def __hash__(self) -> int:
        return hash(self.extension_name)


@pytest.fixture
def registered() -> Iterator[None]:
    pa.register_extension_type(Thirds())
    yield
    pa.unregister_extension_type("example.thirds")


def _stored(kind: pa.DataType, values: list) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


D = decimal.Decimal
COMPARED = {
    "null": pa.nulls(3),
    "bool": pa.array([True, False, None]),
    "int8": pa.array([5, -7, None], pa.int8()),
    "uint64": pa.array([2**64 - 1, 1, None], pa.uint64()),
    "halffloat": array_of([1.5, 2.0, None, -0.0], pa.float16()),
    "float": pa.array([1.5, 2.0, None, float("inf")], pa.float32()),
    "decimal128": pa.array([D("1.5"), D("-2.0"), None], pa.decimal128(38, 1)),
    "decimal256": pa.array([D("1.5"), D("-2.0"), None], pa.decimal256(60, 1)),
    "date32": pa.array([dt.date(2020, 1, 1), dt.date(1960, 1, 1), None]),
    "date64": pa.array([dt.date(2020, 1, 1), dt.date(1960, 1, 1), None], pa.date64()),
    "timestamp[s]": pa.array([5, -5, None], pa.timestamp("s")),
    "timestamp[us, zone]": pa.array([5, -5, None], pa.timestamp("us", "America/New_York")),
    "time32": pa.array([5, 6, None], pa.time32("ms")),
    "time64": pa.array([5000, 6000, None], pa.time64("ns")),
    "duration": pa.array([5, -6, None], pa.duration("us")),
    "string": pa.array(["b", "a", None]),
    "large_string": pa.array(["b", "a", None], pa.large_string()),
    "string_view": pa.array(["b", "a", None], pa.string_view()),
    "binary": pa.array([b"b", b"a", None]),
    "large_binary": pa.array([b"b", b"a", None], pa.large_binary()),
    "binary_view": pa.array([b"b", b"a", None], pa.binary_view()),
    "fixed_size_binary": pa.array([b"bb", b"aa", None], pa.binary(2)),
    "dictionary of strings": pa.array(["b", "a", None]).dictionary_encode(),
    "dictionary of integers": pa.array([5, 4, None]).dictionary_encode(),
    "uuid": _stored(pa.uuid(), [*(u.bytes for u in IDS), None]),
}
NEWER = ("decimal32", "decimal64", "json")
if has("pyarrow", 19):
    COMPARED["decimal32"] = pa.array([D("1.5"), D("-2.0"), None], pa.decimal32(4, 1))
    COMPARED["decimal64"] = pa.array([D("1.5"), D("-2.0"), None], pa.decimal64(14, 1))
    COMPARED["json"] = _stored(pa.json_(), ['{"a": 1}', "2", None])
REFUSED = {
    "list": pa.array([[1], [2], None]),
    "large_list": pa.array([[1], [2], None], pa.large_list(pa.int32())),
    "fixed_size_list": pa.array([[1], [2], None], pa.list_(pa.int32(), 1)),
    "list_view": pa.array([[1], [2], None], pa.list_view(pa.int32())),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
    "struct": pa.array([{"a": 1}, None]),
    "bool8": _stored(pa.bool8(), [1, 2, 0, None]),
    "fixed_shape_tensor": _stored(pa.fixed_shape_tensor(pa.int32(), [1]), [[1], [2], None]),
    "opaque": _stored(pa.opaque(pa.string(), "type", "vendor"), ["b", "a", None]),
    "registered by others": _stored(Thirds(), [5, 4, None]),
}
# Parquet has these since pyarrow 26: lists of a fixed size with a null among them, and (25) views of lists.
REFUSED_CASES = cases(REFUSED, ("fixed_size_list", "fixed_shape_tensor", "list_view"), "pyarrow", 26)
NOT_IN_PARQUET = {
    "month_day_nano_interval": pa.month_day_nano_interval(),
    "run_end_encoded": pa.run_end_encoded(pa.int32(), pa.int64()),
    "union": pa.sparse_union([pa.field("a", pa.int64())]),
    "negative_scale": pa.decimal128(5, -3),
}


def _lake(folder: Path, values: pa.Array) -> ss.Table:
    pq.write_table(pa.table({"x": values, "n": range(len(values))}), folder / "a.parquet")
    return ss.create(folder)


def _rows(table: ss.Table, where: object) -> list[int]:
    plan = table.scan(where)
    rows = plan.to_table().column("n").to_pylist()
    assert plan.count() == len(rows)
    return rows


def _brute(values: list, holds: Any) -> list[int]:
    return [n for n, value in enumerate(values) if value is not None and holds(value)]


def _plain(values: pa.Array) -> list:
    """Values that Python orders as we do: times as counts."""
    if pa.types.is_temporal(values.type):
        return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64()).to_pylist()
    return values.to_pylist()


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("name", cases(COMPARED, NEWER, "pyarrow", 19))
def test_rule_43_values_are_compared_under_every_kind_of_index(name: str, tmp_path: Path) -> None:
    values = COMPARED[name]
    plain = _plain(values)
    table = _lake(tmp_path, values)
    for kind in ("none", "bloom", "secondary"):
        if kind != "none" and name != "null":
            table.create_index("x", kind=kind)
        for literal, own in zip(values, plain, strict=True):
            if own is None:
                continue
            for holds in (operator.eq, operator.ne, operator.lt, operator.ge):
                expected = _brute(plain, lambda value, holds=holds, own=own: holds(value, own))
                assert _rows(table, holds(col("x"), literal)) == expected
            assert _rows(table, col("x").is_in([literal])) == _brute(plain, lambda value, own=own: value == own)
            assert _rows(table, pc.field("x") == literal) == _brute(plain, lambda value, own=own: value == own)
            assert _rows(table, col("x").eq_missing(literal)) == _brute(plain, lambda value, own=own: value == own)
        found = table.lookup(values, on="x").to_table().column("n").to_pylist()
        assert found == [n for n, value in enumerate(plain) if value is not None]
        assert _rows(table, "x IS NULL") == [n for n, value in enumerate(plain) if value is None]
    if name != "null":
        read = pq.read_table(tmp_path / "a.parquet").column("x").combine_chunks()
        there = [(own, value) for own, value in zip(_plain(read), read.to_pylist(), strict=True) if own is not None]
        assert table.scan().min("x") == min(there)[1]
        assert table.scan().max("x") == max(there)[1]


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("name", REFUSED_CASES)
def test_rule_43_what_is_not_compared_by_name_is_refused(name: str, tmp_path: Path, registered: None) -> None:
    values = REFUSED[name]
    table = _lake(tmp_path, values)
    kind = str(table.schema.field("x").type)
    for literal in (1, "b", b"b", True):
        for where in (
            col("x") == literal,
            col("x") != literal,
            col("x") < literal,
            col("x").is_in([literal]),
            ~(col("x") == literal),
        ):
            assert table.scan(where).files().num_rows == 1, "what is not understood prunes nothing"
            for answer in (lambda plan: plan.count(), lambda plan: plan.to_table()):
                with pytest.raises(ss.PredicateError) as error:
                    answer(table.scan(where))
                assert "'x'" in str(error.value) and kind in str(error.value)
    with pytest.raises(ss.PredicateError):
        table.scan("x LIKE 'b%'").count()
    with pytest.raises(ss.PredicateError):
        table.scan(col("x") == values[0]).count()
    of_elements = (
        ("bloom", "secondary") if name in ("list", "large_list", "fixed_size_list") else ()
    )  # these index the elements, not the list
    for kind_of_index in {"stats", "bloom", "secondary", "ngram"}.difference(of_elements):
        with pytest.raises(ss.SkipstoneError, match="'x'"):
            table.create_index("x", kind=kind_of_index)
    with pytest.raises(ss.SchemaError, match="'x'"):
        table.lookup(values.slice(0, 1), on="x")
    with pytest.raises(ss.SchemaError, match="'x'"):
        table.scan().min("x")
    assert _rows(table, "x IS NULL") == [n for n, valid in enumerate(values.is_valid().to_pylist()) if not valid]
    assert table.scan().to_table().column("x").to_pylist() == values.to_pylist()


@pytest.mark.parametrize("name", NOT_IN_PARQUET)
def test_what_parquet_does_not_hold_is_no_column(name: str, tmp_path: Path) -> None:
    with pytest.raises(ss.SchemaError, match="Parquet cannot store"):
        ss.create(tmp_path, schema=pa.schema([("x", NOT_IN_PARQUET[name]), ("n", pa.int64())]))


@pytest.mark.parametrize("kind, value", [(pa.date64(), 86_400_001), (pa.time32("s"), 3_000_000)])
def test_values_that_arrow_calls_invalid_are_not_written(tmp_path: Path, kind: pa.DataType, value: int) -> None:
    """Parquet would store other values, which statistics and indexes of the given ones exclude."""
    values = pa.array([value], kind)
    for column in (values, pa.array([[value]], pa.list_(kind)), pa.StructArray.from_arrays([values], ["v"])):
        table = ss.create(tmp_path / str(column.type), schema=pa.schema([("x", column.type)]))
        with pytest.raises(ss.SchemaError, match=rf"column 'x'.* {value}"), table.transaction() as tx:
            tx.write(pa.table({"x": column}))


def test_a_registered_type_that_has_no_hash_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unhashable(Thirds):
        __hash__ = None  # type: ignore[assignment]

        def __init__(self) -> None:
            pa.ExtensionType.__init__(self, pa.int64(), "example.unhashable")

    pa.register_extension_type(Unhashable())
    try:
        with pytest.raises(ss.SchemaError, match=r"column 'x' is extension<example\.unhashable"):
            _lake(tmp_path, _stored(Unhashable(), [1]))
    finally:
        pa.unregister_extension_type("example.unhashable")


def test_a_type_that_is_not_registered_is_its_storage_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after files of the same schema were read while the type was registered."""
    monkeypatch.setattr(footer_bytes, "kernels_for", lambda *_: kernels_footer)
    rows = pa.table({"x": REFUSED["registered by others"], "n": range(3)})
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
        for number in range(2):
            pq.write_table(rows, tmp_path / folder / f"{number}.parquet")
    pa.register_extension_type(Thirds())
    try:
        ss.create(tmp_path / "before")
    finally:
        pa.unregister_extension_type("example.thirds")
    table = ss.create(tmp_path / "after")
    assert table.schema.field("x").type == pa.int64()
    assert _rows(table, "x = 5") == [0] * 2
