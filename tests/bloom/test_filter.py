"""One filter: its bits are those of the specification, other types and sizes answer alike, damage is refused."""

from __future__ import annotations

import decimal
import struct
import zlib

import kernels_in_use
import numpy as np
import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.base.arrays import read_only, valid_mask
from skipstone.bloom import SplitBlockFilter, hash_array, kernels, numpy_filter, solve_blocks
from skipstone.errors import CorruptionError, FormatVersionError, InvalidArgumentError, SkipstoneError

DECIMAL = decimal.Decimal
HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=200).map(lambda values: np.array(values, dtype=np.uint64))
RUNGS = st.sampled_from([1, 2, 4, 8, 64, 1024])


def reference_words(hashes: list[int], blocks: int) -> list[list[int]]:
    """The specification's insertion, in Python integers."""
    salts = [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31]
    words = [[0] * 8 for _ in range(blocks)]
    for value in hashes:
        block = ((value >> 32) * blocks) >> 32
        for i, salt in enumerate(salts):
            words[block][i] |= 1 << ((((value & 0xFFFFFFFF) * salt) & 0xFFFFFFFF) >> 27)
    return words


@given(HASHES, st.sampled_from([1, 2, 3, 37, 64, 1024]))
def test_bits_are_the_specifications_in_both_twins(hashes: np.ndarray, blocks: int):
    expected = reference_words(hashes.tolist(), blocks)
    twin = np.zeros((blocks, 8), dtype=np.uint32)
    numpy_filter.insert(twin, hashes)
    assert twin.tolist() == expected
    compiled = np.zeros(blocks * 8, dtype=np.uint32)
    kernels.insert(compiled, read_only(hashes))
    assert compiled.reshape(-1, 8).tolist() == expected
    others = np.concatenate([hashes, hashes ^ np.uint64(1 << 40), hashes + np.uint64(12_345)])
    answers = numpy_filter.probe(twin, others)
    assert answers[: len(hashes)].all()
    assert kernels.probe(read_only(compiled), read_only(others)).tolist() == answers.tolist()


@given(HASHES, RUNGS, RUNGS | st.just(3))
def test_folding_is_building_smaller_and_replicating_answers_alike(hashes: np.ndarray, blocks: int, factor: int):
    small = SplitBlockFilter.build_from_hashes(hashes, blocks, "int")
    large = SplitBlockFilter.build_from_hashes(hashes, blocks * factor, "int")
    assert (large.fold(blocks).words == small.words).all()
    others = np.concatenate([hashes, hashes + np.uint64(1), hashes ^ np.uint64(1 << 63)])
    grown = small.replicate(blocks * factor)
    assert grown.blocks == blocks * factor
    assert (grown.contains_hashes(others) == small.contains_hashes(others)).all()
    assert (grown.fold(blocks).words == small.words).all()


@given(HASHES, HASHES, RUNGS, RUNGS)
def test_a_union_is_building_both_at_the_larger_size_or_grown(first, second, one: int, other: int):
    a, b = (SplitBlockFilter.build_from_hashes(h, n, "int") for h, n in ((first, one), (second, other)))
    both = a.union(b)
    assert both.blocks == max(one, other)
    assert both.contains_hashes(np.concatenate([first, second])).all()
    if one == other:
        together = SplitBlockFilter.build_from_hashes(np.concatenate([first, second]), one, "int")
        assert (both.words == together.words).all()


def test_rule_31_sizes_that_do_not_divide_are_refused():
    a, b = (SplitBlockFilter.build(pa.array([1]), blocks=blocks) for blocks in (4, 6))
    for act, argument in ((a.union, b), (b.fold, 4), (a.replicate, 6), (a.fold, 8), (b.replicate, 3)):
        with pytest.raises(InvalidArgumentError, match="must divide"):
            act(argument)


def test_duplicates_do_not_grow_a_filter_and_ndv_overrides():
    few = pa.array([1, 2, 3] * 10_000)
    assert SplitBlockFilter.build(few).blocks == solve_blocks(3, 0.01)
    assert SplitBlockFilter.build(few, ndv=50_000).blocks == solve_blocks(50_000, 0.01)
    blocks = SplitBlockFilter.build(few, ndv=50_000, power_of_two=True).blocks
    assert blocks == 1 << (solve_blocks(50_000, 0.01) - 1).bit_length()


def test_nulls_are_neither_members_nor_answered():
    built = SplitBlockFilter.build(pa.array([None, None], pa.int64()))
    assert not built.words.any()
    assert built.contains(pa.array([None, 0], pa.int64())).to_pylist() == [None, False]
    assert built.contains(pa.array([None])).to_pylist() == [None]


def test_equal_values_of_other_types_are_found():
    built = SplitBlockFilter.build(pa.array([5, 300], pa.int32()))
    assert built.contains(pa.array([5], pa.uint8())).to_pylist() == [True]
    assert built.contains(pa.array([300], pa.int64()).dictionary_encode()).to_pylist() == [True]
    floats = SplitBlockFilter.build(pa.array([-0.0, float("nan"), 0.5], pa.float32()))
    assert floats.contains(pa.array([0.0, -float("nan"), 0.5], pa.float64())).to_pylist() == [True] * 3


@pytest.mark.parametrize(
    "held, asked",
    [
        (pa.array([5]), pa.array(["5"])),
        (pa.array([5]), pa.array([5.0])),
        (pa.array(["5"]), pa.array([5])),
        (pa.array([DECIMAL("5.0")]), pa.array([5])),
        (pa.array([5]), pa.array([DECIMAL("5")])),
        (pa.array([5], pa.timestamp("us")), pa.array([5], pa.duration("us"))),
        (pa.array([5]), pa.array([[5]])),
        (pa.array([5]), [5]),
    ],
)
def test_values_of_another_kind_are_refused(held: pa.Array, asked):
    with pytest.raises(InvalidArgumentError):
        SplitBlockFilter.build(held).contains(asked)


def test_decimals_of_another_scale_are_rescaled_exactly_or_absent():
    built = SplitBlockFilter.build(pa.array([DECIMAL("1.20"), DECIMAL("-3.00"), None], pa.decimal128(10, 2)))
    finer = pa.array([DECIMAL(v) if v else None for v in ("1.2000", "1.2001", "-3.0000", None)], pa.decimal128(20, 4))
    assert built.contains(finer).to_pylist() == [True, False, True, None]
    assert built.contains(pa.array([DECIMAL("-3")], pa.decimal256(76, 0))).to_pylist() == [True]
    assert built.contains(pa.array([DECIMAL("9" * 76)], pa.decimal256(76, 0))).to_pylist() == [False], "too wide"
    coarse = SplitBlockFilter.build(pa.array([DECIMAL("1200")], pa.decimal128(10, -2)))
    finer = pa.array([DECIMAL("1200"), DECIMAL("1250")], pa.decimal128(10, 0))
    assert coarse.contains(finer).to_pylist() == [True, False]


@given(st.lists(st.integers(-(10**30), 10**30), min_size=1, max_size=20), st.integers(0, 4), st.integers(0, 4))
def test_a_decimal_is_found_under_any_scale(unscaled: list[int], scale: int, finer: int):
    with decimal.localcontext(prec=80):
        values = [DECIMAL(value).scaleb(-scale) for value in unscaled]
        built = SplitBlockFilter.build(pa.array(values, pa.decimal128(38, scale)))
        assert all(built.contains(pa.array(values, pa.decimal256(60, scale + finer))).to_pylist())


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_the_layout_of_the_bytes():
    built = SplitBlockFilter.build(pa.array([1, 2, 3]), blocks=2)
    data = built.to_bytes()
    assert data[:16] == b"SSBF" + struct.pack("<HHQ", 1, 3, 2)
    assert data[16:60] == b"int".ljust(44, b"\0")
    assert struct.unpack("<I", data[60:64])[0] == zlib.crc32(data[64:], zlib.crc32(data[:60]))
    assert data[64:] == built.words.tobytes()
    again = SplitBlockFilter.from_bytes(memoryview(b"x" + data)[1:])
    assert (again.hash, again.blocks, again.words.tolist()) == ("int", 2, built.words.tolist())


@given(st.data())
def test_one_flipped_bit_is_found(data):
    whole = bytearray(SplitBlockFilter.build(pa.array(["a", "b"]), blocks=4).to_bytes())
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(CorruptionError):
        SplitBlockFilter.from_bytes(bytes(whole))


@given(st.integers(0, 64 + 4 * 32 - 1))
def test_cut_bytes_are_found(size: int):
    whole = SplitBlockFilter.build(pa.array(["a", "b"]), blocks=4).to_bytes()
    with pytest.raises(CorruptionError):
        SplitBlockFilter.from_bytes(whole[:size])
    with pytest.raises(CorruptionError):
        SplitBlockFilter.from_bytes(whole + b"\0" * (size + 1))


def sealed(head: bytes, bits: bytes) -> bytes:
    return head + struct.pack("<I", zlib.crc32(bits, zlib.crc32(head))) + bits


def test_sound_bytes_of_a_later_version_and_false_sizes():
    def head(version: int, name_size: int, blocks: int) -> bytes:
        return b"SSBF" + struct.pack("<HHQ", version, name_size, blocks) + b"int".ljust(44, b"\0")

    with pytest.raises(FormatVersionError, match="version 2"):
        SplitBlockFilter.from_bytes(sealed(head(2, 3, 1), bytes(32)))
    with pytest.raises(FormatVersionError, match="no hash is named 'in'"):
        SplitBlockFilter.from_bytes(sealed(head(1, 2, 1), bytes(32)))
    for name_size, blocks, size in [(3, 2, 32), (45, 1, 32), (3, 0, 0), (3, 2**63, 32)]:
        with pytest.raises(CorruptionError):
            SplitBlockFilter.from_bytes(sealed(head(1, name_size, blocks), bytes(size)))


NUMBERS = st.sampled_from([0, 1, 2, 3, 31, 32, 44, 45, 2**15, 2**16 - 1, 2**31, 2**32, 2**58, 2**63, 2**64 - 1])
KNOWN_NAMES = st.sampled_from([b"int", b"decimal:-999", b"decimal:5", b"parquet:DOUBLE", b"bytes"])


@settings(max_examples=examples(300))
@given(st.data(), st.one_of(KNOWN_NAMES, st.binary(max_size=44)), st.integers(0, 3), st.sampled_from([0, 0, 0, 1, 31]))
def test_crafted_bytes_are_a_filter_or_refused(data, name, blocks, rest):
    """Their checksum fits. A filter that is accepted answers, or reports that it contains no such values."""

    def field(sound: int, width: int) -> int:
        return data.draw(st.one_of(st.just(sound), st.just(sound), NUMBERS)) % 2 ** (8 * width)

    head = struct.pack("<HHQ", field(1, 2), field(len(name), 2), field(blocks, 8)) + name.ljust(44, b"\0")
    stored = sealed(b"SSBF" + head, b"\xff" * (32 * blocks + rest))
    try:
        built = SplitBlockFilter.from_bytes(stored)
        assert built.size_bytes == len(stored) - 64
        built.contains(pa.array([1, None]))
    except SkipstoneError:
        pass


def test_bytes_that_are_no_filter_are_refused():
    for bad in (None, "text", 5, []):
        with pytest.raises(InvalidArgumentError, match="bytes"):
            SplitBlockFilter.from_bytes(bad)
    for size in (0, 1, 31, 33, 48):
        with pytest.raises(CorruptionError):
            SplitBlockFilter.from_parquet(bytes(size), "INT32")


@pytest.mark.parametrize(
    "arguments",
    [{"fpp": 0}, {"fpp": 1.0}, {"fpp": "x"}, {"ndv": -1}, {"ndv": 1.5}, {"blocks": 0}, {"blocks": 2.5}, {"hash": "md5"},
     {"hash": "parquet:INT96"}, {"hash": "parquet:DOUBLE"}],
)  # fmt: skip
def test_bad_arguments_are_refused(arguments: dict):
    with pytest.raises(InvalidArgumentError):
        SplitBlockFilter.build(pa.array([1, 2, 3]), **arguments)


def test_bad_hashes_and_words_are_refused():
    built = SplitBlockFilter.build(pa.array([1]))
    for bad in (np.zeros(1, dtype=np.int64), np.zeros((1, 1), dtype=np.uint64), [1], None):
        with pytest.raises(InvalidArgumentError):
            built.contains_hashes(bad)
    for words in (np.zeros((1, 7), np.uint32), np.zeros((1, 8), np.uint64), np.zeros((0, 8), np.uint32)):
        with pytest.raises(InvalidArgumentError):
            SplitBlockFilter(words, "int")
    for name in ("md5", "decimal:x", "parquet:INT96", "canonical", None):
        with pytest.raises(InvalidArgumentError, match="no hash is named"):
            SplitBlockFilter.build_from_hashes(np.zeros(1, np.uint64), 1, name)
    with pytest.raises(InvalidArgumentError, match="no union"):
        built.union(SplitBlockFilter.build(pa.array(["a"])))


def test_a_filter_cannot_be_changed():
    built = SplitBlockFilter.build(pa.array([1]))
    with pytest.raises(ValueError, match="read-only"):
        built.words[0, 0] = 1


def test_compiled_and_plain_code_answer_alike():
    """The same bits and the same answers, over more than one piece of the plain twin's."""
    values, found = pa.array(np.arange(80_000)), []
    for are_used in (True, False):
        with kernels_in_use.kernels(are_used=are_used):
            built = SplitBlockFilter.build(values)
            found.append((built.to_bytes(), built.contains(pa.array(np.arange(160_000)))))
    assert found[0] == found[1]
    assert hash_array(values).hashes[7] == hash_array(values[7:8]).hashes[0]


def test_values_are_taken_in_pieces_without_a_seam():
    values = pa.array([None if i % 11 == 0 else f"key {i}" for i in range(150_000)])
    chunked = pa.chunked_array([values[:70_000], values[:0], values[70_000:]])
    held = chunked.take(pa.array(np.arange(0, 150_000, 2)))
    built = SplitBlockFilter.build(held, ndv=75_000)
    whole = hash_array(held).present()
    assert (built.words == SplitBlockFilter.build_from_hashes(whole, built.blocks, "bytes").words).all()
    expected = built.contains_hashes(hash_array(values).hashes)
    for asked in (values, chunked, chunked.dictionary_encode(), values.cast(pa.large_string())):
        answers = built.contains(asked)
        assert answers.is_valid().equals(values.is_valid())
        assert (answers.fill_null(False).to_numpy(zero_copy_only=False) == (expected & valid_mask(values))).all()
    assert built.contains(chunked[:0]).equals(pa.array([], pa.bool_()))
    assert len(SplitBlockFilter.build(pa.chunked_array([], pa.int64())).contains(pa.chunked_array([], pa.int64()))) == 0
