"""Merging runs, against a dict to which they are applied in order."""

import io
import random

import pyarrow as pa
import pytest
from example_counts import examples, is_thorough
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.errors import CorruptionError, InvalidArgumentError, SchemaError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs
from skipstone.hfile_like.block import Block
from sorted_file_crafted import NO_TOMBSTONES, Crafted, last_number, numbers

SCHEMA = pa.schema([("n", pa.int32()), ("s", pa.string())])
KEYS = st.one_of(st.integers(0, 60).map(b"%02d".__mod__), st.binary(max_size=3))
RUN = st.dictionaries(KEYS, st.none() | st.integers(0, 99), max_size=40)


def run_of(entries: dict, block_size: int) -> bytes:
    """None is a tombstone."""
    target = io.BytesIO()
    ordered = sorted(entries.items())
    rows = [{"n": v, "s": None if v is None else f"v{v}"} for _, v in ordered]
    with SortedFileWriter(target, schema=SCHEMA, block_size=block_size) as writer:
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        writer.write([k for k, _ in ordered], batch, [v is None for _, v in ordered])
    return target.getvalue()


def contents(data: bytes) -> dict:
    table = SortedFileReader(data).scan_table(include_deleted=True)
    for row in table.to_pylist():
        assert row["s"] == (None if row["deleted"] else f"v{row['n']}")
    return {r["key"]: None if r["deleted"] else r["n"] for r in table.to_pylist()}


@settings(max_examples=examples(30))
@given(
    runs=st.lists(st.tuples(RUN, st.sampled_from([1, 20, 60, 10_000])), min_size=1, max_size=4),
    drop=st.booleans(),
    block_size=st.sampled_from([1, 50, 10_000]),
)
def test_the_newest_entry_of_a_key_wins(runs, drop, block_size):
    expected: dict = {}
    for entries, _ in runs:
        expected.update(entries)
    if drop:
        expected = {k: v for k, v in expected.items() if v is not None}
    output = io.BytesIO()
    summary = merge_runs([run_of(*r) for r in runs], output, drop_tombstones=drop, block_size=block_size)
    merged = output.getvalue()
    assert contents(merged) == expected
    assert SortedFileReader(merged).verify() == []
    assert summary.num_entries == len(expected)
    assert summary.num_deleted == sum(v is None for v in expected.values())
    assert summary.size_bytes == len(merged)


def test_rule_32_tombstones_dropped_without_the_oldest_run_bring_keys_back():
    oldest, middle, newest = run_of({b"k": 1}, 1), run_of({b"k": None}, 1), run_of({b"z": 2}, 1)

    def merged(runs, drop):
        output = io.BytesIO()
        merge_runs(runs, output, drop_tombstones=drop)
        return output.getvalue()

    kept = merged([oldest, merged([middle, newest], False)], True)
    assert contents(kept) == {b"z": 2}
    returned = merged([oldest, merged([middle, newest], True)], True)
    assert contents(returned) == {b"k": 1, b"z": 2}


def test_paths_readers_and_an_input_as_output(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(run_of({b"a": 1, b"b": 2}, 1))
    second.write_bytes(run_of({b"b": 3}, 1))
    with SortedFileReader(second) as reader:
        merge_runs([str(first), reader], first)
        assert reader.get(b"b") == {"n": 3, "s": "v3"}
    assert contents(first.read_bytes()) == {b"a": 1, b"b": 3}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_what_cannot_be_merged_leaves_nothing(tmp_path):
    other = io.BytesIO()
    with SortedFileWriter(other, schema=pa.schema([("n", pa.int64())])):
        pass
    damaged = bytearray(run_of({b"%03d" % i: i for i in range(50)}, 20))
    damaged[SortedFileReader(bytes(damaged)).blocks()[-1].offset + 30] ^= 1
    with pytest.raises(SchemaError):
        merge_runs([run_of({}, 1), other.getvalue()], tmp_path / "out")
    with pytest.raises(CorruptionError):
        merge_runs([run_of({}, 1), bytes(damaged)], tmp_path / "out")
    with pytest.raises(InvalidArgumentError):
        merge_runs([], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_merge_holds_a_batch_and_not_the_runs():
    class Watching:
        """Notes how far ahead of what was written a run has been read."""

        def __init__(self, data, sink):
            self.data, self.size, self.sink, self.ahead = data, len(data), sink, 0

        def read_ranges(self, ranges):
            if len(self.sink.getvalue()) > 8:
                self.ahead = max(self.ahead, max(o + n for o, n in ranges) - len(self.sink.getvalue()))
            return [self.data[o : o + n] for o, n in ranges]

    values = pa.record_batch({"b": [bytes([i % 251]) * 8192 for i in range(1500)]})
    target = io.BytesIO()
    with SortedFileWriter(target, schema=values.schema, compression="none") as writer:
        writer.write([b"%06d" % i for i in range(1500)], values)
    sink = io.BytesIO()
    source = Watching(target.getvalue(), sink)
    merge_runs([source, target.getvalue()], sink, compression="none")
    assert source.size > 12_000_000
    assert 0 < source.ahead < 6_500_000


# -- blocks that are copied -------------------------------------------------------------------------------------------

NUMBERED = pa.schema([("n", pa.int64()), ("s", pa.string())])
BLOCK_BYTES = 2000


def is_compressed(block: Block) -> bool:
    return any(stored != uncompressed for stored, uncompressed in block.section_sizes())


def numbered_run(entries: dict[tuple[int, int], int | None], **options) -> bytes:
    """Keys are a byte and a number; None is a tombstone."""
    target = io.BytesIO()
    ordered = sorted(entries.items())
    options = {"block_size": BLOCK_BYTES, "partition_prefix_bytes": 1, "summaries": ["n"], **options}
    with SortedFileWriter(target, schema=NUMBERED, **options) as writer:
        rows = [{"n": v, "s": None if v is None else f"part-{v:06d}"} for _, v in ordered]
        keys = [bytes([kind]) + number.to_bytes(8, "big") for (kind, number), _ in ordered]
        writer.write(keys, pa.RecordBatch.from_pylist(rows, schema=NUMBERED), [v is None for _, v in ordered])
    return target.getvalue()


def numbered_merge(runs: list[bytes], **options) -> bytes:
    output = io.BytesIO()
    merge_runs(runs, output, **{"block_size": BLOCK_BYTES, "partition_prefix_bytes": 1, **options})
    return output.getvalue()


def numbered_contents(data: bytes) -> dict:
    table = SortedFileReader(data).scan_table(include_deleted=True)
    return {
        (r["key"][0], int.from_bytes(r["key"][1:], "big")): None if r["deleted"] else r["n"] for r in table.to_pylist()
    }


def copied_blocks(merged: bytes, runs: list[bytes]) -> int:
    """Blocks that lie in a run just as they lie in what was merged, but for their checksums."""

    def bodies(data: bytes) -> list[tuple]:
        return [
            (b.first_key, data[b.offset + 16 + 4 * 16 : b.offset + b.length]) for b in SortedFileReader(data).blocks()
        ]

    return len(set(bodies(merged)) & {body for run in runs for body in bodies(run)})


RANGES = st.builds(
    lambda kind, start, size, step, value: {(kind, start + step * i): value for i in range(size)},
    st.integers(0, 2),
    st.integers(0, 900),
    st.integers(1, 300),
    st.integers(1, 3),
    st.none() | st.integers(0, 99),
)
RUNS = st.lists(st.lists(RANGES, min_size=1, max_size=3).map(lambda parts: {k: v for p in parts for k, v in p.items()}))


@settings(max_examples=examples(12))
@given(
    runs=RUNS.filter(len),
    drop=st.booleans(),
    bounds=st.tuples(st.none() | st.integers(0, 900), st.none() | st.integers(0, 900)),
    options=st.fixed_dictionaries(
        {}, optional={"compression": st.sampled_from(["none", "auto"]), "block_size": st.sampled_from([700, 9000])}
    ),
    without=st.booleans(),
)
def test_copying_blocks_gives_what_decoding_them_gives(runs, drop, bounds, options, without):
    start, stop = (None if n is None else bytes([1]) + n.to_bytes(8, "big") for n in bounds)
    files = [numbered_run(run, **({"summaries": []} if without and i == 0 else {})) for i, run in enumerate(runs)]
    merged = numbered_merge(files, drop_tombstones=drop, start=start, stop=stop, summaries=["s", "n"], **options)
    expected: dict = {}
    for run in runs:
        expected.update(run)
    low, high = (0, 0) if start is None else (1, bounds[0]), (9, 0) if stop is None else (1, bounds[1])
    expected = {k: v for k, v in sorted(expected.items()) if low <= k < high and not (drop and v is None)}
    assert numbered_contents(merged) == expected
    assert SortedFileReader(merged).verify() == []
    assert list(SortedFileReader(merged).zone_maps()) == ["n", "s"]
    if options.get("compression") == "none":
        reader = SortedFileReader(merged)
        assert not any(map(is_compressed, reader.read_blocks(range(reader.num_blocks))))


def test_what_no_other_run_touches_is_copied():
    master = numbered_run({(k, i): i * 977 % 10**6 for k in (1, 2) for i in range(0, 3000, 2)})
    delta = numbered_run({(1, 1001): 7, (2, 10): None, **{(3, i): i for i in range(500)}})
    blocks = SortedFileReader(master).num_blocks
    assert blocks > 40
    merged = numbered_merge([master, delta])
    # The two that were touched are not, nor the last of each kind where it is too small to stand alone.
    assert copied_blocks(merged, [master]) >= blocks - 4
    assert copied_blocks(merged, [delta]) > 5
    assert numbered_contents(merged) == {**numbered_contents(master), **numbered_contents(delta)}


def test_small_blocks_at_the_ends_of_groups_are_joined_with_the_next():
    schema, target, step = pa.schema([("s", pa.string())]), io.BytesIO(), 153  # ten blocks, and three entries
    with SortedFileWriter(target, schema=schema, block_size=BLOCK_BYTES, compression="none") as writer:
        for low in range(0, 40 * step, step):
            keys = [b"%030d" % i for i in range(low, low + step)]
            writer.write(keys, pa.record_batch([[chr(97 + i % 26) * 100 for i in range(step)]], schema=schema))
            writer.end_group(str(low))
    delta, merged = io.BytesIO(), io.BytesIO()
    with SortedFileWriter(delta, schema=schema) as writer:
        writer.write([b"%030d" % 3100], pa.record_batch([["new"]], schema=schema))
    merge_runs([target.getvalue(), delta.getvalue()], merged, block_size=BLOCK_BYTES, compression="zstd")
    before, after = (SortedFileReader(file.getvalue()) for file in (target, merged))
    assert sum(2 * block.plain_bytes < BLOCK_BYTES for block in before.blocks()) == 40
    # What is encoded anew is compressed.
    assert sum(map(is_compressed, after.read_blocks(range(after.num_blocks)))) <= 41
    assert sum(2 * block.plain_bytes < BLOCK_BYTES for block in after.blocks()) <= 1
    assert after.num_entries == before.num_entries and after.get(b"%030d" % 3100) == {"s": "new"}


def test_merging_again_and_again_leaves_no_crumbs():
    chooser = random.Random(3)
    entries: dict[tuple[int, int], int | None] = {(1, i): i for i in range(0, 20_000, 5)}
    data = numbered_run(entries)
    for _ in range(40 if is_thorough() else 12):
        change = {(1, chooser.randrange(20_000)): 1 for _ in range(chooser.choice([1, 3, 60]))}
        data, entries = numbered_merge([data, numbered_run(change)]), {**entries, **change}
    infos = SortedFileReader(data).blocks()
    assert numbered_contents(data) == dict(sorted(entries.items()))
    assert all(BLOCK_BYTES / 2 <= b.plain_bytes <= 2 * BLOCK_BYTES for b in infos[:-1])


def test_damage_of_a_copied_block_is_found():
    data = bytearray(numbered_run({(1, i): i * 977 for i in range(2000)}))
    for i in (0, 5):
        block = SortedFileReader(bytes(data)).blocks()[i]
        for at in (block.offset + 9, block.offset + 40, block.offset + block.length - 9):
            damaged = bytearray(data)
            damaged[at] ^= 1
            with pytest.raises(CorruptionError):
                numbered_merge([bytes(damaged), numbered_run({(2, 1): 1})])


@pytest.mark.parametrize("at", range(5))
def test_a_block_without_the_keys_that_the_index_names_is_damage(at: int) -> None:
    """Its entries lie beyond the keys that are asked for: they would be left out without a word."""
    made = Crafted()
    for i in range(6):
        base = 10 * i + (1000 if i == at else 0)
        made.add(10, [NO_TOMBSTONES, numbers(base=base)], last_number(8, 10 * i), last_number(8, 10 * i + 9))
    with pytest.raises(CorruptionError) as caught:
        merge_runs([made.done()], io.BytesIO(), stop=last_number(8, 500))
    assert caught.value.offset == made.rows[at][0]
