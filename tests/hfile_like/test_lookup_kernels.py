"""Look-ups by compiled code against the plain twin, in sections as they are written and in damaged ones."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels_in_use import kernels
from skipstone.base.arrays import byte_table
from skipstone.errors import CorruptionError, InvalidArgumentError
from skipstone.hfile_like import SortedFileReader
from skipstone.hfile_like.block_keys import decode_keys, encode_bundles, encode_fixed, encode_numbers
from skipstone.hfile_like.codec import EncodedSection, Location
from skipstone.hfile_like.lookup import _find_keys, find_ranges
from sorted_file_builders import written
from test_round_trips import ROW, SCHEMA

LOCATION, CAP = Location("f", 0), 1 << 20
FLIPS = st.lists(st.tuples(st.integers(0, 2**16), st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128])), max_size=3)
NUMBERED = st.binary(min_size=8, max_size=8).map(lambda some: b"shared" + some)
MIXED = st.binary(max_size=3) | st.binary(min_size=20, max_size=40) | st.text("ab", max_size=30).map(str.encode)
KEYS = st.sets(MIXED | NUMBERED, min_size=1, max_size=80) | st.sets(NUMBERED, min_size=1, max_size=80)


class OneSection:
    """A block as far as its keys are needed."""

    def __init__(self, section: EncodedSection, count: int):
        self.entries, self.location, self.key_section = count, LOCATION, section

    @property
    def keys(self):
        return decode_keys(self.key_section.encoding, memoryview(self.key_section.data), self.entries, CAP, LOCATION)


@given(
    entries=st.dictionaries(KEYS.map(sorted).flatmap(st.sampled_from), ROW, min_size=1, max_size=40),
    gone=st.sets(st.integers(0, 40)),
    probes=st.lists(KEYS.map(sorted).flatmap(st.sampled_from), max_size=10),
    block_size=st.integers(1, 400),
)
def test_every_type_is_found_by_both(entries, gone, probes, block_size):
    keys = sorted(entries)
    batch = pa.RecordBatch.from_pylist([entries[key] for key in keys], schema=SCHEMA)
    data = written(keys, batch, [i in gone for i in range(len(keys))], block_size=block_size)
    wanted = [*keys[::-1], *probes, *keys[:3]]
    collected = []
    for are_used in (True, False):
        with kernels(are_used=are_used), SortedFileReader(data) as reader:
            collected += [reader.get_many(wanted, include_deleted=True) for _ in range(2)]
    assert all(table.equals(collected[-1]) for table in collected)
    assert collected[0]["found"].to_pylist() == [key in entries for key in wanted]
    live = pa.table([pa.array(keys), *batch.columns], names=["key", *SCHEMA.names])
    assert collected[0].slice(0, len(keys)).drop_columns(["found", "deleted"]).to_pylist() == live.to_pylist()[::-1]


def sections_of(items: set[bytes]) -> dict[int, tuple[list[bytes], bytes]]:
    """By encoding, keys and a section of them: of some keys those that it can have."""
    chosen = sorted(items)
    width = len(chosen[0])
    narrow = [key for key in chosen if len(key) == width]
    sections = {2: (chosen, encode_bundles(pa.array(chosen, pa.binary())))}
    sections[1] = narrow, bytes(encode_fixed(byte_table(pa.array(narrow, pa.binary()))))
    if width:
        numbers = [key for key in narrow if key[:-8] == narrow[0][:-8]]
        sections[3] = numbers, encode_numbers(byte_table(pa.array(numbers, pa.binary())))
    return sections


def damaged_block(encoding: int, sound: bytes, flips: list, count: int) -> tuple[OneSection, list[bytes] | None]:
    """(a damaged block that claims `count` keys, the keys that the plain twin reads: None if it refuses them)."""
    data = bytearray(sound)
    for place, bit in flips:
        data[place % len(data)] ^= bit
    bad = OneSection(EncodedSection(encoding, 0, bytes(data)), max(1, count))
    try:
        return bad, bad.keys.to_arrow().to_pylist()
    except CorruptionError:
        return bad, None


@given(items=KEYS, probes=KEYS, flips=FLIPS, more=st.integers(-1, 1), several=st.integers(1, 3))
def test_keys_are_found_or_refused_as_the_plain_twin_does(items, probes, flips, more, several):
    for encoding, (keys, sound) in sections_of(items).items():
        wanted = sorted({*items, *probes})
        cuts = [(i * len(wanted), (i + 1) * len(wanted)) for i in range(several)]
        blocks = [OneSection(EncodedSection(encoding, 0, sound), len(keys))] * several
        rows = {key: i for i, key in enumerate(keys)}
        with kernels(are_used=True):
            found = _find_keys(blocks, cuts, wanted * several)
        expected = [[i * len(keys) + rows[key] if key in rows else -1 for key in wanted] for i in range(several)]
        assert found.tolist() == [row for each in expected for row in each]
        bad, decoded = damaged_block(encoding, sound, flips, len(keys) + more)
        with kernels(are_used=True):
            try:
                found = _find_keys([bad], cuts[:1], wanted).tolist()
            except CorruptionError:
                assert decoded is None
                continue
        # If keys are out of order, some may be missed; none is found that is not there.
        assert decoded is not None
        assert all(row < 0 or decoded[row] == key for row, key in zip(found, wanted, strict=True))


@given(items=KEYS, probes=KEYS, width=st.integers(1, 12), flips=FLIPS, more=st.integers(-1, 1), data=st.data())
def test_entries_of_ranges_are_found_by_both(items, probes, width, flips, more, data):
    items |= {key[:-1] + b"\0" for key in items if key}
    some = data.draw(st.sets(st.sampled_from(sorted(items))))
    points = sorted({*some, *probes, *(key[:-1] for key in items | probes if key)})
    one = [(low, high) for low, high in pairwise(points) if data.draw(st.booleans())]
    ranges = [one, one[1:], [], one[:1]]
    others = sections_of(probes)
    for encoding, section in sections_of(items).items():
        held = [section, others.get(encoding, section), section, section]
        blocks = [OneSection(EncodedSection(encoding, 0, sound), len(keys)) for keys, sound in held]
        asked = [(b, low, high) for b, of_block in enumerate(ranges) for low, high in of_block]
        met = [
            (n, b, i) for n, (b, low, high) in enumerate(asked) for i, key in enumerate(held[b][0]) if low <= key < high
        ]
        tails = [held[b][0][i][-width:] for _, b, i in met]
        for are_used in (True, False):
            with kernels(are_used=are_used):
                numbers, picks = find_ranges(blocks, ranges)
                assert len(picks.blocks) == len({b for _, b, _ in met})
                assert (numbers.tolist(), picks.rows.tolist()) == ([n for n, _, _ in met], [i for _, _, i in met])
                if any(len(tail) < width for tail in tails):
                    with pytest.raises(InvalidArgumentError, match="shorter"):
                        picks.key_tails(width)
                else:
                    assert list(map(bytes, picks.key_tails(width))) == tails
        keys, sound = section
        bad, decoded = damaged_block(encoding, sound, flips, len(keys) + more)
        with kernels(are_used=True):
            try:
                picks = find_ranges([bad, bad], [one, one])[1]  # of one block alone, none is compiled
                tails = picks.key_tails(width)
            except (CorruptionError, InvalidArgumentError):
                continue
        # Where keys are out of order, others may be met; what is said of them is what is there.
        assert not one or decoded is not None
        assert list(map(bytes, tails)) == [decoded[row][-width:] for row in picks.rows.tolist()]
