"""A filter of the keys, handed in by the caller: look-ups ask it first, and no answer depends on it."""

from __future__ import annotations

import io
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from skipstone.bloom import SplitBlockBuilder, SplitBlockFilter
from skipstone.errors import CorruptionError, InvalidArgumentError
from skipstone.hfile_like import SortedFileReader, merge_runs
from sorted_files import CountingSource, written

KEYS = [b"k%05d" % i for i in range(0, 4000, 2)]
VALUES = pa.record_batch({"n": pa.array(range(len(KEYS)))})


def filtered(keys=KEYS, values=VALUES, deleted=None, **options) -> bytes:
    return written(keys, values, deleted, key_filter=SplitBlockBuilder(0.001), block_size=2000, **options)


def test_a_key_that_the_filter_has_not_costs_no_block():
    source = CountingSource(filtered())
    reader = SortedFileReader(source, tail_bytes=3000, key_filter=SplitBlockFilter.from_bytes)
    missing = [b"k%05d" % i for i in range(1, 4000, 2)]
    reader.get(missing[0])
    asked = len(source.asked)
    assert [reader.get(key) for key in missing[:300]] == [None] * 300
    assert len(source.asked) - asked <= 3, "0.1% of them are false"
    assert reader.get(KEYS[700]) == {"n": 700}
    asked = len(source.asked)
    assert not any(reader.get_many(missing[:500])["found"].to_pylist())
    assert len(source.asked) - asked <= 3
    assert reader.get_many([missing[5], KEYS[5], KEYS[900]])["n"].to_pylist() == [None, 5, 900]


@profile(max_examples=30)
@given(
    st.dictionaries(st.binary(max_size=4), st.booleans(), max_size=60),
    st.lists(st.binary(max_size=4), max_size=30),
    st.booleans(),
)
def test_answers_are_those_without_it(entries, probes, include_deleted):
    keys = sorted(entries)
    data = filtered(keys, pa.record_batch({"n": pa.array(range(len(keys)), pa.int64())}), [entries[k] for k in keys])
    asking = SortedFileReader(data, key_filter=SplitBlockFilter.from_bytes)
    plain = SortedFileReader(data)
    wanted = keys[::2] + probes
    assert [asking.get(key) for key in wanted] == [plain.get(key) for key in wanted]
    answers = [reader.get_many(wanted, include_deleted=include_deleted) for reader in (asking, plain)]
    assert answers[0] == answers[1]
    assert asking.scan_table() == plain.scan_table()


def test_it_is_loaded_once_and_only_where_it_is_asked():
    loads = []

    def load(data: bytes) -> SplitBlockFilter:
        loads.append(data)
        return SplitBlockFilter.from_bytes(data)

    data = filtered()
    reader = SortedFileReader(data, key_filter=load)
    assert reader.get(b"a") is None and reader.get(b"z") is None, "the index says as much"
    reader.scan_table()
    assert loads == []
    threads = [threading.Thread(target=reader.get, args=(KEYS[i],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1 and loads[0] == reader.key_filter_bytes()
    plain = SortedFileReader(written(KEYS, VALUES), key_filter=load)
    assert plain.get(KEYS[3]) == {"n": 3} and plain.key_filter_bytes() is None and len(loads) == 1


def test_damage_in_it_is_found_by_those_who_ask_it():
    data = bytearray(filtered())
    stored = SortedFileReader(bytes(data)).key_filter_bytes()
    data[data.index(stored) + 100] ^= 4
    reader = SortedFileReader(bytes(data), key_filter=SplitBlockFilter.from_bytes)
    for ask in (lambda: reader.get(KEYS[1]), lambda: reader.get_many(KEYS[:3]), reader.key_filter_bytes):
        with pytest.raises(CorruptionError, match="checksum of the key filter"):
            ask()
    assert [finding.check for finding in reader.verify()] == ["the key filter checksum"]
    assert SortedFileReader(bytes(data)).get(KEYS[1]) == {"n": 1}


def test_any_object_with_the_methods_will_do():
    class Exactly:
        def __init__(self):
            self.keys: list[bytes] = []

        def add(self, keys: pa.BinaryArray) -> None:
            self.keys += keys.to_pylist()

        def to_bytes(self) -> bytes:
            return b"\n".join(self.keys)

    class Members:
        def __init__(self, data: bytes):
            self.held = set(data.split(b"\n"))

        def contains(self, keys: pa.BinaryArray) -> np.ndarray:
            return np.array([key in self.held for key in keys.to_pylist()], dtype=bool)

    builder = Exactly()
    data = written(KEYS, VALUES, key_filter=builder, block_size=500)
    assert builder.keys == KEYS, "all, in order"
    reader = SortedFileReader(data, key_filter=Members)
    assert reader.get_many([b"k00001", KEYS[1]])["found"].to_pylist() == [False, True]
    some = pa.chunked_array([[b"k00001"], [], [KEYS[1]]], pa.binary())
    assert reader.get_many(some)["found"].to_pylist() == [False, True]
    assert reader.get_many([])["found"].to_pylist() == []
    Members.contains = lambda self, keys: np.ones(1, dtype=bool)  # type: ignore[method-assign]
    with pytest.raises(InvalidArgumentError, match="answered 1 times for 2 keys"):
        reader.get_many(KEYS[:2])
    Members.contains = lambda self, keys: pa.array([None] * len(keys), pa.bool_())  # type: ignore[method-assign]
    assert reader.get(KEYS[4]) == {"n": 4}, "null is no no"


def test_a_merge_keeps_none_but_fills_a_new_one_with_all_keys():
    delta = written([b"a", b"k00001", KEYS[9]], pa.record_batch({"n": [1, 2, 3]}), [False, False, True])
    output = io.BytesIO()
    merge_runs([filtered(), delta], output)
    assert SortedFileReader(output.getvalue()).key_filter_bytes() is None
    output = io.BytesIO()
    merge_runs([filtered(), delta], output, key_filter=SplitBlockBuilder(), block_size=2000)
    reader = SortedFileReader(output.getvalue(), key_filter=SplitBlockFilter.from_bytes)
    everything = reader.get_many([b"a", b"k00001", *KEYS], include_deleted=True)
    assert everything["found"].to_pylist() == [True] * (2 + len(KEYS)), "of blocks that were copied too"
    assert reader.get(KEYS[9]) is None and reader.get(b"a") == {"n": 1}
