"""What a writer chooses by a sample, and the dictionary that it may choose: answers never depend on either."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from skipstone.errors import CorruptionError, InvalidArgumentError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs, read_block_range, sampling, settings
from sorted_files import written

SCHEMA = pa.schema([("text", pa.string()), ("n", pa.int64())])
WORDS = ["".join(np.random.default_rng(i).choice(list("abcdefghijklmnopqrstuvwxyz"), 7)) for i in range(300)]
BLOCK_SIZE, COMPRESSION, REASON = (f"skipstone.settings.{name}" for name in ("block_size", "compression", "reason"))


def sentences(count: int, seed: int = 0, start: int = 0) -> tuple[list[bytes], pa.RecordBatch]:
    """Entries of about 90 bytes that a dictionary suits: few of the words that there are stand in one block."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(WORDS), (count, 9))
    texts = [" ".join(WORDS[j] for j in row) for row in picks]
    values = pa.record_batch([texts, rng.integers(0, 1 << 40, count)], schema=SCHEMA)
    return [b"k%08d" % i for i in range(start, start + count)], values


def trained(seed: int = 0) -> bytes:
    texts = "\n".join(sentences(2000, seed)[1].column("text").to_pylist()).encode()
    samples = [texts[at : at + 2000] for at in range(0, len(texts), 2000)]
    return zstandard.train_dictionary(4096, samples, k=200, d=8).as_bytes()


DICTIONARIES = {seed: trained(seed) for seed in (0, 5)}


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few kilobytes are sampled."""
    monkeypatch.setattr(sampling, "SAMPLE_BYTES", 2000)


@pytest.fixture
def middling_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of MIDDLING entries are."""
    monkeypatch.setattr(sampling, "SAMPLE_BYTES", 1 << 19)


MIDDLING = 8000


# -- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("use", "block_bytes"), [("get", 16 << 10), ("both", 32 << 10), ("scan", 64 << 10)])
def test_a_small_file_takes_the_defaults_and_says_nothing(use, block_bytes):
    keys, values = sentences(2000)
    data = written(keys, values, use=use)
    assert data == written(keys, values, block_size=block_bytes, compression="zstd", level=1)
    assert SortedFileReader(data).properties == {}


@pytest.mark.usefixtures("middling_sample")
@pytest.mark.parametrize("use", ["get", "both", "scan"])
def test_a_large_file_tells_what_it_chose_and_why(use):
    keys, values = sentences(MIDDLING)
    data = written(keys, values, use=use)
    reader = SortedFileReader(data)
    told = reader.properties
    assert set(told) == {BLOCK_SIZE, COMPRESSION, REASON}
    assert int(told[BLOCK_SIZE]) in settings.BLOCK_SIZES_BYTES[use]
    assert told[COMPRESSION].startswith("zstd")
    assert f"for '{use}'" in told[REASON] and "bytes" in told[REASON] and "others cost" in told[REASON]
    assert ("dictionary" in told[COMPRESSION]) == (reader.dictionary is not None)
    sizes = [block.plain_bytes for block in reader.blocks()[:-1]]
    assert min(sizes) >= int(told[BLOCK_SIZE])
    assert reader.scan_table().select(SCHEMA.names) == pa.Table.from_batches([values])
    assert reader.verify() == []


@pytest.mark.usefixtures("middling_sample")
def test_the_same_entries_give_the_same_file_however_they_are_written():
    keys, values = sentences(MIDDLING)
    whole = written(keys, values, use="get")
    target = io.BytesIO()
    with SortedFileWriter(target, schema=SCHEMA, use="get") as writer:
        at = 0
        for size in [1, 999, 3000, MIDDLING]:
            writer.write(keys[at : at + size], values.slice(at, size))
            at += size
    assert target.getvalue() == whole == written(keys, values, use="get")


@pytest.mark.usefixtures("middling_sample")
@pytest.mark.parametrize("use", ["get", "scan"])
def test_what_is_chosen_could_have_been_given(use):
    keys, values = sentences(MIDDLING)
    data = written(keys, values, use=use)
    chosen = SortedFileReader(data)
    size, dictionary = int(chosen.properties[BLOCK_SIZE]), chosen.dictionary
    other = written(keys, values, block_size=size, compression="zstd", dictionary=dictionary)
    assert chosen.blocks() == SortedFileReader(other).blocks()
    for block in chosen.blocks():
        assert data[block.offset :][: block.length] == other[block.offset :][: block.length]


@pytest.mark.usefixtures("middling_sample")
def test_what_is_given_is_not_chosen():
    keys, values = sentences(MIDDLING)
    sized = SortedFileReader(written(keys, values, block_size=4096))
    assert sized.properties[BLOCK_SIZE] == "4096"
    assert "dictionary" in sized.properties[COMPRESSION], "blocks this small share too little without one"
    assert sized.scan_table().num_rows == MIDDLING
    packed = SortedFileReader(written(keys, values, compression="zstd", level=3)).properties
    assert packed[COMPRESSION] == "zstd 3"
    assert SortedFileReader(written(keys, values, compression="none")).properties[COMPRESSION] == "none"
    assert SortedFileReader(written(keys, values, block_size=4096, compression="zstd")).properties == {}


@pytest.mark.usefixtures("middling_sample")
def test_bytes_that_do_not_compress_are_given_no_dictionary():
    rng = np.random.default_rng(1)
    keys = sorted(rng.bytes(16) for _ in range(MIDDLING))
    values = pa.record_batch({"v": pa.array([rng.bytes(60) for _ in range(MIDDLING)])})
    reader = SortedFileReader(written(keys, values, use="get"))
    assert reader.dictionary is None and "dictionary" not in reader.properties[COMPRESSION]


@pytest.mark.parametrize(
    ("sizes", "sampled"), [([5 << 20], False), ([1, 5 << 20, 1], False), ([10] * 99 + [1 << 19] * 9, True)]
)
def test_entries_longer_than_a_block_are_sampled_where_there_are_some(sizes, sampled):
    values = pa.record_batch({"v": pa.array([bytes([i % 251]) * size for i, size in enumerate(sizes)])})
    reader = SortedFileReader(written([b"%03d" % i for i in range(len(sizes))], values))
    assert (REASON in reader.properties) == sampled
    assert reader.scan_table().select(["v"]) == pa.Table.from_batches([values])


@pytest.mark.usefixtures("middling_sample")
def test_properties_of_another_file_do_not_tell_of_this_one():
    keys, values = sentences(MIDDLING)
    properties = SortedFileReader(written(keys, values)).properties | {"mine": "kept"}
    assert SortedFileReader(written(keys[:10], values[:10], properties=properties)).properties == {"mine": "kept"}


@pytest.mark.usefixtures("small_sample")
def test_a_sample_is_copied_before_the_callers_memory_changes():
    numbers = np.arange(4)
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([("n", pa.int64())])) as writer:
        writer.write([b"a", b"b", b"c", b"d"], pa.record_batch({"n": pa.array(numbers)}))
        numbers[:] = 9
    assert SortedFileReader(target.getvalue()).scan_table()["n"].to_pylist() == [0, 1, 2, 3]


ENTRIES = st.dictionaries(
    st.one_of(st.integers(0, 500).map(b"%06d".__mod__), st.binary(max_size=20)),
    st.tuples(st.none() | st.text(max_size=40), st.none() | st.integers(-(2**63), 2**63 - 1), st.booleans()),
    max_size=300,
)


@pytest.mark.usefixtures("small_sample")
@profile(max_examples=25)
@given(ENTRIES, st.sampled_from(["get", "both", "scan"]), st.sampled_from(["auto", 1, 300]), st.data())
def test_answers_do_not_depend_on_the_choice(entries, use, block_size, data):
    ordered = sorted(entries.items())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ordered)), max_size=4)))
    target = io.BytesIO()
    with SortedFileWriter(target, schema=SCHEMA, use=use, block_size=block_size) as writer:
        for low, high in zip([0, *cuts], [*cuts, len(ordered)], strict=True):
            rows = [value for _, value in ordered[low:high]]
            batch = pa.record_batch([[row[0] for row in rows], [row[1] for row in rows]], schema=SCHEMA)
            writer.write([key for key, _ in ordered[low:high]], batch, [row[2] for row in rows])
            if data.draw(st.booleans()):
                writer.end_group(f"to {high}, {len(writer.groups)}")
    reader = SortedFileReader(target.getvalue())
    live = {key: row[:2] for key, row in ordered if not row[2]}
    assert [tuple(row.values()) for row in reader.scan_table().to_pylist()] == [(k, *v) for k, v in live.items()]
    found = reader.get_many([key for key, _ in ordered])
    assert found["found"].to_pylist() == [key in live for key, _ in ordered]
    assert reader.verify() == []


# -- the dictionary ---------------------------------------------------------------------------------------------------


def test_a_dictionary_makes_small_blocks_smaller_and_changes_no_answer():
    keys, values = sentences(5000)
    plain = SortedFileReader(written(keys, values, block_size=2000, compression="zstd"))
    reader = SortedFileReader(written(keys, values, block_size=2000, dictionary=DICTIONARIES[0]))
    assert reader.dictionary == DICTIONARIES[0]
    assert reader.size_bytes + 1000 < plain.size_bytes, "it pays for itself already"
    assert reader.scan_table() == plain.scan_table()
    assert reader.get(keys[77]) == plain.get(keys[77])
    assert reader.get_many(keys[::97]) == plain.get_many(keys[::97])
    assert reader.verify() == []


def test_groups_are_read_without_the_footer_where_the_dictionary_is_handed_on():
    keys, values = sentences(600)
    target = io.BytesIO()
    with SortedFileWriter(target, schema=SCHEMA, block_size=1000, dictionary=DICTIONARIES[0]) as writer:
        writer.write(keys[:300], values[:300])
        writer.end_group("first")
        writer.write(keys[300:], values[300:])
        group = pickle.loads(pickle.dumps(writer.end_group("second")))
    data = target.getvalue()
    dictionary = SortedFileReader(data).dictionary
    table = read_block_range(data, group.offset, group.length, SCHEMA, dictionary=dictionary)
    assert table["key"].to_pylist() == keys[300:]
    with pytest.raises(InvalidArgumentError, match="give `dictionary`, as `SortedFileReader"):
        read_block_range(data, group.offset, group.length, SCHEMA)
    with pytest.raises(CorruptionError, match="does not decompress"):
        read_block_range(data, group.offset, group.length, SCHEMA, dictionary=DICTIONARIES[5])
    with pytest.raises(InvalidArgumentError, match="no zstandard dictionary"):
        read_block_range(data, group.offset, group.length, SCHEMA, dictionary=b"not one")


@pytest.mark.usefixtures("middling_sample")
def test_small_groups_count_towards_the_sample():
    keys, values = sentences(MIDDLING)
    out, step = io.BytesIO(), 500
    with SortedFileWriter(out, schema=SCHEMA, use="scan") as writer:
        for low in range(0, MIDDLING, step):
            writer.write(keys[low : low + step], values.slice(low, step))
            writer.end_group(str(low))
        assert writer.size_bytes > 0
    with SortedFileReader(out.getvalue()) as reader:
        assert REASON in reader.properties
        assert reader.scan_table().column("key").to_pylist() == keys
        for low in range(0, MIDDLING, step):
            assert (
                reader.scan_table(group=str(low)).column("n").to_pylist()
                == values.column("n")[low : low + step].to_pylist()
            )


def test_a_damaged_dictionary_is_found_when_it_is_needed():
    keys, values = sentences(3000)
    data = bytearray(written(keys, values, block_size=2000, dictionary=DICTIONARIES[0]))
    at = data.index(DICTIONARIES[0])
    data[at + 2000] ^= 1
    reader = SortedFileReader(bytes(data), tail_bytes=1000)
    assert reader.num_entries == 3000, "opening does not read it"
    for ask in (lambda: reader.get(keys[5]), reader.scan_table, lambda: reader.dictionary):
        with pytest.raises(CorruptionError, match="checksum of the dictionary"):
            ask()
    assert {finding.check for finding in reader.verify()} == {"the dictionary checksum"}


def test_a_file_with_a_dictionary_says_so_in_its_trailer():
    keys, values = sentences(100)
    files = [written(keys, values, **options) for options in ({}, {"dictionary": DICTIONARIES[0]})]
    flags = [int.from_bytes(data[-12:-10], "little") for data in files]
    assert flags == [0, 1], "a reader that knows no dictionaries refuses the file"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dictionary": "text"}, "a dictionary is bytes"),
        ({"dictionary": b""}, "no zstandard dictionary"),
        ({"dictionary": bytes(2 << 20)}, "at most"),
        ({"dictionary": DICTIONARIES[0], "compression": "none"}, "of no use"),
        ({"level": 0, "compression": "zstd"}, "give 1 to 19"),
        ({"level": True, "compression": "zstd"}, "give 1 to 19"),
        ({"level": 3}, "compression='zstd' with it"),
        ({"use": "speed"}, "get, scan or both"),
        ({"block_size": 0}, "give bytes"),
        ({"block_size": "large"}, "or 'auto'"),
    ],
)
def test_bad_settings_are_named(options, said):
    with pytest.raises(InvalidArgumentError, match=said):
        SortedFileWriter(io.BytesIO(), schema=SCHEMA, **options)


# -- merging ----------------------------------------------------------------------------------------------------------


def merged(runs: list[bytes], **options) -> SortedFileReader:
    output = io.BytesIO()
    merge_runs(runs, output, **options)
    return SortedFileReader(output.getvalue())


@pytest.mark.usefixtures("middling_sample")
def test_a_merge_goes_on_with_the_settings_of_the_largest_run():
    keys, values = sentences(MIDDLING)
    master, delta = written(keys, values, use="get", block_size=4096), written(*sentences(50, seed=1, start=100))
    before, after = SortedFileReader(master), merged([master, delta])
    assert {name: after.properties[name] for name in (BLOCK_SIZE, COMPRESSION)} == {
        name: before.properties[name] for name in (BLOCK_SIZE, COMPRESSION)
    }
    assert after.dictionary == before.dictionary is not None
    assert len(set(_stored(before)) & set(_stored(after))) > 0.9 * before.num_blocks, "copied as they lie"
    assert after.get(keys[120]) == sentences(50, seed=1, start=100)[1].slice(20, 1).to_pylist()[0]
    assert after.verify() == []
    again = merged([io.BytesIO(master).getvalue(), delta], block_size=10_000, compression="none")
    assert again.dictionary is None and again.scan_table() == after.scan_table()


def _stored(reader: SortedFileReader) -> list[bytes]:
    """The keys of each block, as they are encoded."""
    return [bytes(reader.block(i).plain(1)) for i in range(reader.num_blocks)]


@profile(max_examples=20)
@given(st.lists(st.tuples(st.sets(st.integers(0, 400)), st.sampled_from([None, 0, 5])), min_size=1, max_size=4))
def test_runs_of_unlike_dictionaries_merge(runs):
    expected: dict[bytes, str] = {}
    files = []
    for number, (picks, seed) in enumerate(runs):
        keys = [b"k%08d" % i for i in sorted(picks)]
        texts = [f"{WORDS[i % 20]} {WORDS[number]} {WORDS[i % 7]} {WORDS[i % 50]} {i}" for i in sorted(picks)]
        expected |= dict(zip(keys, texts, strict=True))
        batch = pa.record_batch([texts, [number] * len(texts)], schema=SCHEMA)
        files.append(written(keys, batch, block_size=500, dictionary=None if seed is None else DICTIONARIES[seed]))
    for options in ({}, {"dictionary": DICTIONARIES[5]}, {"compression": "none", "block_size": 500}):
        result = merged(files, **options)
        assert dict(zip(*(result.scan_table()[name].to_pylist() for name in ("key", "text")), strict=True)) == expected
        assert result.verify() == []


# -- memory, and dying in between -------------------------------------------------------------------------------------


def test_a_large_file_is_written_in_little_memory(tmp_path):
    before = pa.total_allocated_bytes()
    most = 0
    with SortedFileWriter(tmp_path / "large.skb", schema=pa.schema([("v", pa.binary())]), use="scan") as writer:
        for start in range(0, 40_000, 1000):
            values = pa.array([b"%09d" % i * 100 for i in range(start, start + 1000)])
            writer.write([b"%09d" % i for i in range(start, start + 1000)], pa.record_batch({"v": values}))
            del values
            most = max(most, pa.total_allocated_bytes() - before)
    assert SortedFileReader(tmp_path / "large.skb").num_entries == 40_000
    assert most < 12 << 20, "the sample, a block, and a copy of either: of 36 MB"


def test_a_writer_that_is_killed_leaves_no_file_or_the_old_one(tmp_path):
    old = tmp_path / "old.skb"
    old.write_bytes(written(*sentences(3)))
    program = (
        "import os, signal, sys, pyarrow as pa\n"
        "from skipstone.hfile_like import SortedFileWriter\n"
        "for path in sys.argv[1:]:\n"
        "    writer = SortedFileWriter(path, schema=pa.schema([('v', pa.binary())]), block_size=4096)\n"
        "    writer.write([b'%05d' % i for i in range(9000)], pa.record_batch({'v': [os.urandom(700)] * 9000}))\n"
        "    writer.put_meta('m', os.urandom(100_000))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(old), str(tmp_path / "new.skb")], env={**os.environ})
    assert ended.returncode == -signal.SIGKILL
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == ["old.skb"]
    assert SortedFileReader(old).num_entries == 3


def test_a_file_is_durable_before_its_name_and_the_name_before_it_is_told(tmp_path, monkeypatch):
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, real=real, name=name: (calls.append(name), real(*given))[1])
    with SortedFileWriter(tmp_path / "run.skb", schema=SCHEMA) as writer:
        writer.write(*sentences(3))
        assert calls == []
    assert calls == ["fsync", "replace", "fsync"], "the bytes, the name, the folder"
