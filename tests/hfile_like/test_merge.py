"""Merging runs, against a dict to which they are applied in order."""

import io
import random
from collections import ChainMap

import pyarrow as pa
import pytest
from example_counts import examples, is_thorough
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.errors import CorruptionError, InvalidArgumentError, SchemaError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs
from skipstone.hfile_like.block import Block
from sorted_file_builders import written
from sorted_file_crafted import NO_TOMBSTONES, Crafted, last_number, numbers

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
BLOCK_BYTES = 2000
# Some keys are any bytes, others a byte and consecutive numbers, whose blocks a merge may copy. None is a tombstone.
KEYS = st.one_of(st.integers(0, 60).map(b"%02d".__mod__), st.binary(max_size=3))
ANY = st.dictionaries(KEYS, st.none() | st.integers(0, 99), max_size=40)
RANGES = st.builds(
    lambda kind, start, size, step, value: {key_of(kind, start + step * i): value for i in range(size)},
    st.integers(0, 2),
    st.integers(0, 900),
    st.integers(1, 300),
    st.integers(1, 3),
    st.none() | st.integers(0, 99),
)
RUN = ANY | st.lists(RANGES | ANY, min_size=1, max_size=3).map(lambda parts: dict(ChainMap(*parts)))


def key_of(kind: int, number: int) -> bytes:
    return bytes([kind]) + number.to_bytes(8, "big")


def run_of(entries: dict[bytes, int | None], block_size: int = BLOCK_BYTES, **options) -> bytes:
    ordered = sorted(entries.items())
    rows = [{"n": v, "s": None if v is None else f"part-{v:06d}"} for _, v in ordered]
    batch, deleted = pa.RecordBatch.from_pylist(rows, schema=SCHEMA), [v is None for _, v in ordered]
    return written([k for k, _ in ordered], batch, deleted, SCHEMA, block_size=block_size, **options)


def merged(runs: list[bytes], block_size: int = BLOCK_BYTES, **options) -> bytes:
    output = io.BytesIO()
    summary = merge_runs(runs, output, block_size=block_size, **options)
    assert summary.size_bytes == len(output.getvalue())
    reader = SortedFileReader(output.getvalue())
    assert (summary.num_entries, summary.num_deleted) == (reader.num_entries, reader.num_deleted)
    return output.getvalue()


def contents(data: bytes) -> dict[bytes, int | None]:
    table = SortedFileReader(data).scan_table(include_deleted=True)
    for row in table.to_pylist():
        assert row["s"] == (None if row["deleted"] else f"part-{row['n']:06d}")
    return {r["key"]: None if r["deleted"] else r["n"] for r in table.to_pylist()}


def is_compressed(block: Block) -> bool:
    return any(stored != uncompressed for stored, uncompressed in block.section_sizes())


@settings(max_examples=examples(50))
@given(
    runs=st.lists(st.tuples(RUN, st.sampled_from([1, 20, 60, BLOCK_BYTES, 10_000])), min_size=1, max_size=4),
    prefix_bytes=st.integers(0, 1),
    bounds=st.tuples(*[st.none() | KEYS | st.integers(0, 900).map(lambda number: key_of(1, number))] * 2),
    options=st.fixed_dictionaries(
        {"drop_tombstones": st.booleans(), "block_size": st.sampled_from([1, 50, 700, BLOCK_BYTES, 9000])},
        optional={"compression": st.sampled_from(["none", "auto"])},
    ),
    summaries=st.sampled_from([[], ["n"], ["n", "s"]]),
    without=st.booleans(),
)
def test_the_newest_entry_of_a_key_wins(runs, prefix_bytes, bounds, options, summaries, without):
    """Whether blocks are copied or, because of other summaries or keys between theirs, decoded."""
    options["partition_prefix_bytes"] = prefix_bytes
    files = [
        run_of(run, size, partition_prefix_bytes=prefix_bytes, summaries=[] if without and i == 0 else ["n"])
        for i, (run, size) in enumerate(runs)
    ]
    start, stop = bounds
    found = merged(files, start=start, stop=stop, summaries=summaries, **options)
    newest = dict(ChainMap(*(run for run, _ in reversed(runs))))
    assert contents(found) == {
        key: value
        for key, value in sorted(newest.items())
        if (start or b"") <= key and (stop is None or key < stop) and not (options["drop_tombstones"] and value is None)
    }
    reader = SortedFileReader(found)
    assert reader.verify() == [] and list(reader.zone_maps()) == summaries
    if options.get("compression") == "none":
        assert not any(map(is_compressed, reader.read_blocks(range(reader.num_blocks))))


def test_rule_32_tombstones_dropped_without_the_oldest_run_bring_keys_back():
    oldest, middle, newest = run_of({b"k": 1}), run_of({b"k": None}), run_of({b"z": 2})
    for drop, expected in ((False, {b"z": 2}), (True, {b"k": 1, b"z": 2})):
        later = merged([middle, newest], drop_tombstones=drop)
        assert contents(merged([oldest, later], drop_tombstones=True)) == expected


def test_paths_readers_and_an_input_as_output(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(run_of({b"a": 1, b"b": 2}, 1))
    second.write_bytes(run_of({b"b": 3}, 1))
    with SortedFileReader(second) as reader:
        merge_runs([str(first), reader], first)
        assert reader.get(b"b") == {"n": 3, "s": "part-000003"}
    assert contents(first.read_bytes()) == {b"a": 1, b"b": 3}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_runs_that_cannot_be_merged_leave_nothing(tmp_path):
    other = written([b"a"], pa.record_batch({"n": [1]}))
    damaged = bytearray(run_of({b"%03d" % i: i for i in range(50)}, 20))
    damaged[SortedFileReader(bytes(damaged)).blocks()[-1].offset + 30] ^= 1
    with pytest.raises(SchemaError):
        merge_runs([run_of({}, 1), other], tmp_path / "out")
    with pytest.raises(CorruptionError):
        merge_runs([run_of({}, 1), bytes(damaged)], tmp_path / "out")
    with pytest.raises(InvalidArgumentError):
        merge_runs([], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_merge_holds_a_batch_and_not_the_runs():
    class Watching:
        """Records how far ahead of the written bytes a run is read."""

        def __init__(self, data, sink):
            self.data, self.size, self.sink, self.ahead = data, len(data), sink, 0

        def read_ranges(self, ranges):
            if len(self.sink.getvalue()) > 8:
                self.ahead = max(self.ahead, max(o + n for o, n in ranges) - len(self.sink.getvalue()))
            return [self.data[o : o + n] for o, n in ranges]

    values = pa.record_batch({"b": [bytes([i % 251]) * 8192 for i in range(1500)]})
    run, sink = written([b"%06d" % i for i in range(1500)], values, compression="none"), io.BytesIO()
    source = Watching(run, sink)
    merge_runs([source, run], sink, compression="none")
    assert source.size > 12_000_000
    assert 0 < source.ahead < 6_500_000


# -- blocks that are copied -------------------------------------------------------------------------------------------


def numbered_run(entries: dict[tuple[int, int], int | None]) -> bytes:
    """Keys are a byte and a number."""
    return run_of({key_of(*key): value for key, value in entries.items()}, partition_prefix_bytes=1)


def copied_blocks(merged: bytes, runs: list[bytes]) -> int:
    """The number of blocks of a run that the merged file contains unchanged, except their checksums."""

    def bodies(data: bytes) -> list[tuple]:
        return [
            (b.first_key, data[b.offset + 16 + 4 * 16 : b.offset + b.length]) for b in SortedFileReader(data).blocks()
        ]

    return len(set(bodies(merged)) & {body for run in runs for body in bodies(run)})


def test_blocks_that_no_other_run_touches_are_copied():
    master = numbered_run({(k, i): i * 977 % 10**6 for k in (1, 2) for i in range(0, 3000, 2)})
    delta = numbered_run({(1, 1001): 7, (2, 10): None, **{(3, i): i for i in range(500)}})
    blocks = SortedFileReader(master).num_blocks
    assert blocks > 40
    found = merged([master, delta], partition_prefix_bytes=1)
    # The two that were touched are not, and the last of each kind is not either if it is too small.
    assert copied_blocks(found, [master]) >= blocks - 4
    assert copied_blocks(found, [delta]) > 5
    assert contents(found) == {**contents(master), **contents(delta)}


def test_a_key_that_ends_a_block_and_begins_another_run_is_merged():
    first = numbered_run({(1, i): i for i in range(2000)})
    end = int.from_bytes(SortedFileReader(first).blocks()[2].last_key[1:], "big")
    second = numbered_run({(1, i): -i for i in range(end, 3000)})
    for older, newer in ((first, second), (second, first)):
        assert contents(merged([older, newer])) == {**contents(older), **contents(newer)}


def test_small_blocks_at_the_ends_of_groups_are_joined_with_the_next():
    schema, target, step = pa.schema([("s", pa.string())]), io.BytesIO(), 153  # ten blocks, and three entries
    with SortedFileWriter(target, schema=schema, block_size=BLOCK_BYTES, compression="none") as writer:
        for low in range(0, 40 * step, step):
            keys = [b"%030d" % i for i in range(low, low + step)]
            writer.write(keys, pa.record_batch([[chr(97 + i % 26) * 100 for i in range(step)]], schema=schema))
            writer.end_group(str(low))
    delta = written([b"%030d" % 3100], pa.record_batch([["new"]], schema=schema))
    found = merged([target.getvalue(), delta], compression="zstd")
    before, after = (SortedFileReader(file) for file in (target.getvalue(), found))
    assert sum(2 * block.plain_bytes < BLOCK_BYTES for block in before.blocks()) == 40
    # Blocks that are encoded again are compressed.
    assert sum(map(is_compressed, after.read_blocks(range(after.num_blocks)))) <= 41
    assert sum(2 * block.plain_bytes < BLOCK_BYTES for block in after.blocks()) <= 1
    assert after.num_entries == before.num_entries and after.get(b"%030d" % 3100) == {"s": "new"}


def test_merging_again_and_again_leaves_no_crumbs():
    chooser = random.Random(3)
    entries: dict[tuple[int, int], int | None] = {(1, i): i for i in range(0, 20_000, 5)}
    data = numbered_run(entries)
    for _ in range(40 if is_thorough() else 12):
        change = {(1, chooser.randrange(20_000)): 1 for _ in range(chooser.choice([1, 3, 60]))}
        data, entries = merged([data, numbered_run(change)], partition_prefix_bytes=1), {**entries, **change}
    infos = SortedFileReader(data).blocks()
    assert contents(data) == {key_of(*key): value for key, value in sorted(entries.items())}
    assert all(BLOCK_BYTES / 2 <= b.plain_bytes <= 2 * BLOCK_BYTES for b in infos[:-1])


def test_damage_of_a_copied_block_is_found():
    data = bytearray(numbered_run({(1, i): i * 977 for i in range(2000)}))
    for i in (0, 5):
        block = SortedFileReader(bytes(data)).blocks()[i]
        for at in (block.offset + 9, block.offset + 40, block.offset + block.length - 9):
            damaged = bytearray(data)
            damaged[at] ^= 1
            with pytest.raises(CorruptionError):
                merged([bytes(damaged), numbered_run({(2, 1): 1})], partition_prefix_bytes=1)


@pytest.mark.parametrize("at", range(5))
def test_a_block_without_the_keys_that_the_index_names_is_damage(at: int) -> None:
    """Its entries are beyond the requested keys: without the check they would be left out silently."""
    made = Crafted()
    for i in range(6):
        base = 10 * i + (1000 if i == at else 0)
        made.add(10, [NO_TOMBSTONES, numbers(base=base)], last_number(8, 10 * i), last_number(8, 10 * i + 9))
    with pytest.raises(CorruptionError) as caught:
        merged([made.done()], stop=last_number(8, 500))
    assert caught.value.offset == made.rows[at][0]
