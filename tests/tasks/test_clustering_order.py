"""The order that clustering learns from a sample, and the ranges that it cuts: sound whatever the sample was."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from skipstone.engine.clustering import ORDERS, Buckets, Keys, Placement, RowOrder, sorted_by
from skipstone.errors import InvalidArgumentError, SchemaError

NAN = float("nan")
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy]] = {
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "few": (pa.int32(), st.integers(0, 2)),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=True) | st.sampled_from([0.0, -0.0, NAN])),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(st.characters(codec="utf-8"), max_size=4).map(lambda t: "the same beginning " + t)),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "decimal": (pa.decimal128(30, 2), st.integers(-(10**29), 10**29).map(lambda n: Decimal(n).scaleb(-2))),
    "date": (pa.date32(), st.dates()),
    "instant": (
        pa.timestamp("us", "UTC"),
        st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),
    ),
}


def rank_of(value: object) -> tuple:
    """Orders values as the engine does: null first, NaN last, strings by their bytes."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, value != value, 0.0 if value != value else value + 0.0)
    return (1, value.encode() if isinstance(value, str) else value)


@st.composite
def columns_of(draw: st.DrawFn, most: int = 3) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=most, unique=True))
    count = draw(st.integers(0, 30))
    found = {}
    for name in names:
        kind, values = VALUES[name]
        found[name] = pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind)
    return pa.table(found)


def listed(keys: Keys) -> list:
    return keys.tolist() if isinstance(keys, np.ndarray) else keys.to_pylist()


@given(columns_of(), st.data())
def test_linear_is_the_order_of_the_tuples(rows: pa.Table, data: st.DataObject) -> None:
    sample = rows.slice(0, data.draw(st.integers(0, rows.num_rows)))
    order = pickle.loads(pickle.dumps(RowOrder("linear", sample)))
    tuples = [tuple(rank_of(v) for v in row.values()) for row in rows.to_pylist()]
    at = sorted_by(order.keys(rows)).tolist()
    assert at == sorted(range(rows.num_rows), key=lambda i: tuples[i])


@given(columns_of(most=1), st.sampled_from(ORDERS))
def test_of_one_column_every_curve_is_its_order(rows: pa.Table, curve: str) -> None:
    ranks = [rank_of(row) for row in rows.column(0).to_pylist()]
    at = sorted_by(RowOrder(curve, rows.slice(0, 5)).keys(rows)).tolist()
    assert at == sorted(range(rows.num_rows), key=ranks.__getitem__)


@given(columns_of(), st.sampled_from(["zorder", "hilbert"]), st.data())
def test_equal_rows_have_one_key_and_morton_keeps_dominance(rows: pa.Table, curve: str, data: st.DataObject) -> None:
    sample = rows.slice(0, data.draw(st.integers(0, rows.num_rows)))
    keys = listed(RowOrder(curve, sample).keys(rows))
    tuples = [tuple(rank_of(v) for v in row.values()) for row in rows.to_pylist()]
    for one, key in zip(tuples, keys, strict=True):
        for other, its in zip(tuples, keys, strict=True):
            if one == other:
                assert key == its
            elif curve == "zorder" and all(a <= b for a, b in zip(one, other, strict=True)):
                assert key <= its, "no lesser in any column, so no lesser along the z-order"


def test_crowded_values_and_pairs_of_values_spread_over_the_grid() -> None:
    """Bits of the values themselves would leave a column whose values crowd, or begin alike, without a say."""
    draw = np.random.default_rng(0)
    count = 10_000
    crowded = np.where(draw.random(count) < 0.001, 1 << 60, draw.integers(0, 1000, count))
    names = [f"https://www.example.com/a/long/beginning/{v:04}" for v in draw.integers(0, 10_000, count)]
    flag = draw.random(count) < 0.5
    rows = pa.table({"crowded": crowded, "name": names, "flag": flag})
    for curve in ("zorder", "hilbert"):
        order = RowOrder(curve, rows.slice(0, 4_000))
        files = Buckets(order.keys(rows.slice(0, 4_000)), 64).of(order.keys(rows))
        for name in rows.column_names:
            ranks = pc.rank(rows.column(name), tiebreaker="min").to_numpy()
            widths = [np.ptp(ranks[files == number]) for number in range(64)]
            # 64 files by three columns: about four parts of each
            assert np.mean(widths) < 0.45 * count, (curve, name)
        assert len(pickle.dumps(order)) < 300_000


@example(pa.table({"d": pa.array([None, 1, -1, 0], pa.decimal128(30, 2))}), "linear", 8, 3)
@given(columns_of(most=2), st.sampled_from(ORDERS), st.integers(1, 9), st.integers(0, 30))
def test_buckets_are_ranges_of_keys(rows: pa.Table, curve: str, count: int, sampled: int) -> None:
    sample = rows.slice(0, sampled)
    order = RowOrder(curve, sample)
    buckets = pickle.loads(pickle.dumps(Buckets(order.keys(sample), count)))
    keys = order.keys(rows)
    found, ordered = buckets.of(keys).tolist(), listed(keys)
    assert all(0 <= bucket < count for bucket in found)
    for one, its in zip(ordered, found, strict=True):
        for other, others in zip(ordered, found, strict=True):
            assert one >= other or its <= others


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_buckets_hold_about_as_many_rows_each(kind: pa.DataType) -> None:
    draw = np.random.default_rng(1)
    half = np.full(50_000, 7_000)  # one value of half of the rows: spread over its own buckets
    values = np.concatenate([half, draw.integers(0, 10_000, 50_000)])
    draw.shuffle(values)
    texts = [f"{v:05}" for v in values.tolist()]
    rows = pa.table({"a": pa.array(texts).cast(kind), "b": pa.array(values % 2)})
    for curve in ORDERS:
        columns = rows if curve != "linear" else rows.select(["a"])
        order = RowOrder(curve, columns.slice(0, 20_000))
        buckets = Buckets(order.keys(columns.slice(0, 20_000)), 40)
        sizes = np.bincount(buckets.of(order.keys(columns), 3), minlength=40)
        assert sizes.max() < 2.5 * 2_500, (curve, sizes)
        # Less only if the bucket ends that the crowded value begins in.
        assert np.sort(sizes)[1] > 0.4 * 2_500, (curve, sizes)


def test_cuts_of_texts_that_begin_alike_stay_small() -> None:
    draw = np.random.default_rng(2)
    names = pa.array([f"{'x' * 200}{v:09}{'y' * 100}" for v in draw.integers(0, 10**9, 20_000)])
    rows = pa.table({"a": names, "b": names})
    for curve in ORDERS:
        order = RowOrder(curve, rows)
        buckets = Buckets(order.keys(rows), 100)
        sizes = np.bincount(buckets.of(order.keys(rows)), minlength=100)
        assert curve != "linear" or 100 < sizes.min() <= sizes.max() < 300
        assert len(pickle.dumps((order, buckets))) < 400_000


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=12), st.integers(1, 200), st.integers(1, 100), st.integers(0, 20)
)
def test_partitions_never_meet_in_a_bucket_or_a_file(
    rows: list[int], file_rows: int, bucket_rows: int, sampled: int
) -> None:
    draw = np.random.default_rng(0)
    order = RowOrder("linear", pa.table({"a": pa.array([], pa.int64())}))
    values = [pa.table({"a": draw.integers(0, 50, count)}) for count in rows]
    keys = {number: order.keys(some.slice(0, sampled)) for number, some in enumerate(values)}
    placement = pickle.loads(pickle.dumps(Placement(keys, rows, file_rows, bucket_rows)))
    assert placement.lanes.tolist() == sorted(placement.lanes.tolist())
    assert set(placement.lanes.tolist()) == set(range(placement.lane_count))
    partitions_of: dict[int, set[int]] = {}
    for number, some in enumerate(values):
        buckets = placement.buckets_of(number, order.keys(some))
        for bucket in set(buckets.tolist()):
            partitions_of.setdefault(bucket, set()).add(number)
    assert all(len(numbers) == 1 for numbers in partitions_of.values())
    by_lane: dict[int, set[int]] = {}
    for bucket, numbers in partitions_of.items():
        by_lane.setdefault(int(placement.lanes[bucket]), set()).update(numbers)
    for numbers in by_lane.values():
        if len(numbers) > 1:
            assert sum(rows[number] for number in numbers) <= max(file_rows, max(rows[n] for n in numbers))
    expected = [max(1, round(count / file_rows)) for count in rows]
    assert placement.lane_count <= sum(expected)


def test_what_has_no_order_is_refused() -> None:
    rows = pa.table({"a": [1], "b": pa.array([[1]])})
    with pytest.raises(SchemaError, match="'b' is list<"):
        RowOrder("linear", rows)
    with pytest.raises(InvalidArgumentError, match="linear, zorder, hilbert"):
        RowOrder("peano", rows.select(["a"]))
    wide = pa.table({f"c{at}": [at] for at in range(65)})
    with pytest.raises(InvalidArgumentError, match="64 columns"):
        RowOrder("zorder", wide)
    assert len(RowOrder("linear", wide).keys(wide)) == 1
