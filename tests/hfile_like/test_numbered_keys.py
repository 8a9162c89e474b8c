"""Scans and look-ups of keys that are a prefix and a number, and the footer's summaries, against plain Python."""

import io

import numpy as np
import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.errors import InvalidArgumentError, SchemaError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter
from skipstone.hfile_like.block import Block
from sorted_file_builders import CountingSource, written

WIDE = st.integers(-(2**63), 2**63 - 1)
# Those of the first group have summaries.
SUMMED = {
    "i": (pa.int64(), WIDE | st.integers(-5, 5) | st.integers(10**12, 10**12 + 60_000) | st.just(7)),
    "h": (pa.int16(), st.integers(-(2**15), 2**15 - 1) | st.just(-1)),
    "t": (pa.timestamp("us", "UTC"), st.integers(-(10**15), 10**15) | st.just(10**15)),
    "f": (pa.bool_(), st.booleans()),
    "s": (pa.string(), st.text(max_size=6) | st.sampled_from(["base", "base", "log"])),
    "l": (pa.large_binary(), st.binary(max_size=6) | st.just(b"constant")),
}
TYPES = {
    **SUMMED,
    "u": (pa.uint64(), st.integers(0, 2**64 - 1) | st.integers(2**63, 2**63 + 9)),
    "x": (pa.float64(), st.floats(allow_nan=False)),
    "d": (pa.decimal128(20, 3), st.integers(-(10**9), 10**9)),
    "w": (pa.binary(3), st.binary(min_size=3, max_size=3)),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in TYPES.items()])
ROW = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()})
NUMBER = st.integers(0, 40) | st.integers(0, 2**64 - 1) | st.integers(2**64 - 9, 2**64 - 1) | st.integers(500, 900)
PREFIXES = [b"\x01a", b"\x01b", b"\x01\xff", b""]


def key_of(prefix: bytes, number: int) -> bytes:
    return prefix + number.to_bytes(8, "big")


def batch_of(rows: list[dict]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def in_rows(found, names) -> dict:
    assert found.ids.dtype == np.uint64
    for name in names:
        assert isinstance(found.columns[name], pa.Array)
        assert found.columns[name].type == SCHEMA.field(name).type
        found.columns[name].validate(full=True)
    columns = [found.columns[name].to_pylist() for name in names]
    gone = [False] * len(found.ids) if found.deleted is None else found.deleted.tolist()
    return {n: (row, g) for n, *row, g in zip(found.ids.tolist(), *columns, gone, strict=True)}


@st.composite
def files(draw):
    width = draw(st.sampled_from([2, 0]))
    prefixes = [p for p in PREFIXES if len(p) == width]
    same = draw(st.booleans())
    entries = draw(
        st.dictionaries(st.tuples(st.sampled_from(prefixes), NUMBER), st.tuples(ROW, st.booleans()), max_size=40)
    )
    if draw(st.booleans()):
        start, step = draw(st.integers(0, 2**40)), draw(st.integers(1, 9))
        row = draw(ROW)
        run = {(prefixes[0], start + step * i): (row, i % 7 == 3) for i in range(draw(st.integers(1, 60)))}
        entries = {**entries, **run}
    if same and entries:
        first = next(iter(entries.values()))
        entries = {k: (first[0], gone) for k, (_, gone) in entries.items()}
    ordered = sorted((key_of(*k), k, v) for k, v in entries.items())
    data = written(
        [key for key, _, _ in ordered],
        batch_of([row for _, _, (row, _) in ordered]),
        [gone for _, _, (_, gone) in ordered],
        block_size=draw(st.sampled_from([1, 300, 2000, 1 << 20])),
        compression=draw(st.sampled_from(["auto", "none"])),
        summaries=list(SUMMED),
    )
    return data, prefixes, entries, ordered


def test_a_number_is_not_taken_for_its_neighbour_if_floats_do_not_tell_them_apart() -> None:
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([("n", pa.int64())])) as writer:
        writer.write([key_of(b"", 2**53 + 2), key_of(b"", 2**60)], pa.record_batch({"n": [1, 2]}))
    wanted = np.array([2**53 + 1, 2**53 + 2, 2**60 - 1], np.uint64)
    assert SortedFileReader(target.getvalue()).by_id(b"").get(wanted).ids.tolist() == [2**53 + 2]


@settings(max_examples=examples(30))
@given(
    made=files(),
    names=st.none() | st.lists(st.sampled_from(SCHEMA.names), unique=True),
    deleted=st.booleans(),
    probes=st.sets(NUMBER, max_size=20),
    ends=st.tuples(NUMBER, NUMBER),
    data=st.data(),
)
def test_numbers_agree_with_a_dict(made, names, deleted, probes, ends, data):
    file, prefixes, entries, ordered = made
    reader = SortedFileReader(file)
    assert reader.verify() == []
    asked = SCHEMA.names if names is None else names
    table = batch_of([row for _, _, (row, _) in ordered]).to_pylist()
    stored = {k: row for (_, k, _), row in zip(ordered, table, strict=True)}
    blocks = data.draw(st.none() | st.sets(st.integers(0, max(0, reader.num_blocks - 1))).map(sorted))
    blocks = None if not reader.num_blocks else blocks
    for prefix in prefixes:
        expected = {
            k[1]: ([row[name] for name in asked], entries[k][1])
            for k, row in stored.items()
            if k[0] == prefix and (deleted or not entries[k][1])
        }
        whole = reader.by_id(prefix).scan(names, include_deleted=deleted)
        assert (whole.deleted is not None) == deleted
        assert in_rows(whole, asked) == expected and list(whole.columns) == list(asked)
        wanted = sorted({*probes, *list(expected)[::3]})
        some = reader.by_id(prefix).get(np.array(wanted, dtype=np.uint64), names, include_deleted=deleted)
        assert in_rows(some, asked) == {n: expected[n] for n in wanted if n in expected}
        between = reader.by_id(prefix).between(min(ends), max(ends), names, include_deleted=deleted)
        assert in_rows(between, asked) == {n: row for n, row in expected.items() if min(ends) <= n <= max(ends)}
        within = reader.block_range(prefix)
        bounds = reader.by_id(prefix).block_bounds()
        held = [
            [k[1] for key, k, _ in ordered if k[0] == prefix and info.first_key <= key <= info.last_key]
            for info in reader.blocks()
        ]
        assert all(not held[i] for i in range(reader.num_blocks) if i not in within)
        for i, first, last in zip(within, *(b.tolist() for b in bounds), strict=True):
            info = reader.blocks()[i]
            assert first == (int.from_bytes(info.first_key[-8:], "big") if info.first_key.startswith(prefix) else 0)
            assert last == (
                int.from_bytes(info.last_key[-8:], "big") if info.last_key.startswith(prefix) else 2**64 - 1
            )
        if blocks is not None:
            part = reader.by_id(prefix).scan(names, blocks=blocks, include_deleted=deleted)
            of_blocks = [n for i in blocks for n in held[i]]
            assert in_rows(part, asked) == {n: expected[n] for n in of_blocks if n in expected}


def summary_of(values: list) -> tuple:
    there = [v for v in values if v is not None]
    return (min(there), max(there)) if there else None, len(values) - len(there), len(values)


def as_bound(name: str, value):
    if value is None:
        return None
    if name == "s":
        return value.encode()
    return int(value) if name == "f" else value


@settings(max_examples=examples(25))
@given(made=files())
def test_summaries_are_exact(made):
    file, _, _, ordered = made
    reader = SortedFileReader(file)
    assert reader.zone_maps(["u", "nothing"]) == {"u": None, "nothing": None}
    for name in list(reader.zone_maps()):
        summary = reader.zone_maps([name])[name]
        assert {len(summary.lower), len(summary.upper), len(summary.null_count), len(summary.live)} == {
            reader.num_blocks
        }
        assert summary.null_count.dtype == summary.live.dtype == np.uint32
        for i, info in enumerate(reader.blocks()):
            values = [
                as_bound(name, row[name])
                for key, _, (row, gone) in ordered
                if info.first_key <= key <= info.last_key and not gone
            ]
            bounds, nulls, live = summary_of(values)
            assert (int(summary.null_count[i]), int(summary.live[i])) == (nulls, live)
            if bounds is not None:
                found = (summary.lower.tolist()[i], summary.upper.tolist()[i])
                assert found == bounds
        part = reader.zone_maps([name], range(1, reader.num_blocks))[name] if reader.num_blocks > 1 else summary
        assert part.null_count.tolist() == summary.null_count.tolist()[-len(part.null_count) :]


@pytest.mark.parametrize("names", [["c"], ["x"], ["u"], "ab"])
def test_columns_without_an_order_have_no_summary(names):
    schema = pa.schema([("a", pa.int8()), ("x", pa.float64()), ("u", pa.uint64())])
    with pytest.raises(SchemaError):
        SortedFileWriter(io.BytesIO(), schema=schema, summaries=names)


def test_keys_that_are_no_numbers_are_refused():
    reader = SortedFileReader(written([b"pre", b"pre" + bytes(8), b"prefix"], None))
    some = reader.by_id(b"pre")
    for read in (some.scan, lambda: some.get(np.array([0], np.uint64)), some.block_bounds):
        with pytest.raises(InvalidArgumentError, match="8 bytes"):
            read()
    assert reader.by_id(b"q").scan().ids.tolist() == []
    for numbers in ([2, 1], [1, 1], [[1]]):
        with pytest.raises(InvalidArgumentError, match="ids"):
            reader.by_id(b"q").get(np.array(numbers, np.uint64))
    with pytest.raises(InvalidArgumentError, match="uint64"):
        reader.by_id(b"q").get(np.array([1], np.int64))
    for blocks in ([1], [-1], [0.5], [0, 0]):
        with pytest.raises(InvalidArgumentError, match="blocks"):
            reader.by_id(b"q").scan(blocks=blocks)
    with pytest.raises(InvalidArgumentError, match="bytes"):
        reader.by_id("q").scan()


# -- sizes and reads ------------------------------------------------------------------------------------------


def run_of(count: int, columns: dict, **options) -> bytes:
    keys = pa.array([key_of(b"pre", 2**32 + i) for i in range(count)], pa.binary())
    return written(keys, pa.record_batch(columns), **options)


def stored_bytes(data: bytes) -> int:
    return sum(block.length for block in SortedFileReader(data).blocks())


@pytest.mark.parametrize(
    ("column", "most"),
    [
        (pa.array(np.zeros(10_000, np.int64) - 5), 8),
        (pa.array(np.arange(10_000) % 256 + 10**15), 10_000),
        (pa.array(np.random.default_rng(1).integers(-(2**31), 2**31, 10_000)), 40_000),
        (pa.array(np.random.default_rng(1).integers(0, 2**16, 10_000) - 9, pa.timestamp("us")), 20_000),
        (pa.array(np.random.default_rng(1).integers(0, 2**16, 10_000) - 9, pa.int32()), 20_000),
        (pa.array(["base"] * 10_000), 16),
        (pa.array(["base", None] * 5_000, pa.large_string()), 1300),
        (pa.array([b"a long value in few rows", b"and another"] * 5_000), 10_100),
        (pa.array([True] * 10_000), 8),
        (pa.array([None] * 10_000, pa.bool_()), 0),
    ],
)
def test_narrow_values_take_few_bytes(column, most):
    without = stored_bytes(run_of(10_000, {}, schema=pa.schema([]), compression="none", block_size=1 << 23))
    # The keys are consecutive: a block head, two entries of the directory, and the head of the keys.
    assert without == 16 + 2 * 16 + 24 + 8
    data = run_of(10_000, {"c": column}, compression="none", block_size=1 << 23)
    assert stored_bytes(data) - without - 16 <= most + 16
    found = SortedFileReader(data).by_id(b"pre").scan()
    assert found.columns["c"].equals(column)
    assert found.ids.tolist() == list(range(2**32, 2**32 + 10_000))


def test_a_scan_checks_and_decodes_what_it_returns(monkeypatch):
    columns = {"a": np.arange(1000), "b": np.arange(1000) % 7, "c": [str(i) for i in range(1000)]}
    data = run_of(1000, columns, block_size=1 << 20)
    damaged = bytearray(data)
    block = SortedFileReader(data).blocks()[0]
    damaged[block.offset + block.length - 20] ^= 1
    reader = SortedFileReader(bytes(damaged))
    decoded = []
    whole = Block.column
    monkeypatch.setattr(Block, "column", lambda self, at: decoded.append(at) or whole(self, at))
    # The last section is damaged: a scan of other columns does not read it, and `verify` does.
    assert reader.by_id(b"pre").scan(["b", "a"]).columns["a"].to_pylist() == list(range(1000))
    assert decoded == [1, 0]
    assert [finding.check for finding in reader.verify()] == ["section checksum"]


def test_a_look_up_reads_the_blocks_it_needs():
    data = run_of(20_000, {"a": np.random.default_rng(1).integers(0, 2**60, 20_000)}, block_size=1 << 15)
    source = CountingSource(data)
    reader = SortedFileReader(source)
    infos = reader.blocks()
    first, last = reader.by_id(b"pre").block_bounds()
    assert first.tolist() == [int.from_bytes(b.first_key[3:], "big") for b in infos]
    assert last.tolist() == [int.from_bytes(b.last_key[3:], "big") for b in infos]
    source.ranges.clear()
    found = reader.by_id(b"pre").get(np.array([5, 2**32, 2**32 + 3, int(first[4])], np.uint64))
    assert len(found.ids) == 3
    assert source.ranges == [(infos[i].offset, infos[i].length) for i in (0, 4)]
    source.ranges.clear()
    assert len(reader.by_id(b"pre").scan(blocks=[2]).ids) == infos[2].entries
    assert source.ranges == [(infos[2].offset, infos[2].length)]
