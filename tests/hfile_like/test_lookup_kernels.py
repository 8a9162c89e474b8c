"""Look-ups by compiled code against the plain twin, in sections as they are written and in damaged ones."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels_in_use import kernels
from skipstone.errors import CorruptionError, InvalidArgumentError
from skipstone.hfile_like import SortedFileReader
from skipstone.hfile_like.block_encoding import encode_bundles, encode_column, encode_fixed, encode_numbers
from skipstone.hfile_like.codec import Encoded, Where
from skipstone.hfile_like.keys import decode_keys
from skipstone.hfile_like.lookups import Picks, find_between, find_in, tails_of, take_from
from skipstone.hfile_like.values import ValueColumn
from sorted_file_builders import written
from test_round_trips import ROW, SCHEMA
from test_sorted_file_kernels import CAP, FLIPS, KEYS, columns, damaged

WHERE = Where("f", 0)


class OneSection:
    """A block as far as one section is asked of it."""

    def __init__(self, section: Encoded, count: int, kind: pa.DataType):
        self.entries, self.where, self.schema = count, WHERE, pa.schema([("a", kind)])
        self._section = section

    def held(self, _: int) -> tuple:
        return self._section[:3]

    def encoding_of(self, _: int) -> int:
        return self._section.encoding

    @property
    def keys(self):
        return decode_keys(self._section.encoding, memoryview(self._section.raw), self.entries, CAP, WHERE)

    def column(self, _: int) -> ValueColumn:
        return ValueColumn(self.schema.field(0).type, self.entries, *self._section[:3], CAP, WHERE)


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
    told = []
    for are_used in (True, False):
        with kernels(are_used=are_used), SortedFileReader(data) as reader:
            told += [reader.get_many(wanted, include_deleted=True) for _ in range(2)]
    assert all(table.equals(told[-1]) for table in told)
    assert told[0]["found"].to_pylist() == [key in entries for key in wanted]
    live = pa.table([pa.array(keys), *batch.columns], names=["key", *SCHEMA.names])
    assert told[0].slice(0, len(keys)).drop_columns(["found", "deleted"]).to_pylist() == live.to_pylist()[::-1]


def sections_of(items: set[bytes]) -> dict[int, tuple[list[bytes], bytes]]:
    """By encoding, keys and a section of them: of some keys those that it can have."""
    chosen = sorted(items)
    width = len(chosen[0])
    narrow = [key for key in chosen if len(key) == width]
    sections = {2: (chosen, encode_bundles(pa.array(chosen, pa.binary())))}
    sections[1] = narrow, encode_fixed(pa.array(narrow, pa.binary()))
    if width:
        numbers = [key for key in narrow if key[:-8] == narrow[0][:-8]]
        sections[3] = numbers, encode_numbers(pa.array(numbers, pa.binary()), width)
    return sections


def damaged_block(encoding: int, sound: bytes, flips: list, count: int) -> tuple[OneSection, list[bytes] | None]:
    """(a block that claims so many keys, what the plain twin makes of them: None where it refuses them)."""
    bad = OneSection(Encoded(encoding, 0, damaged(sound, flips)), max(1, count), pa.int8())
    try:
        return bad, bad.keys.to_arrow().to_pylist()
    except CorruptionError:
        return bad, None


@given(items=KEYS, probes=KEYS, flips=FLIPS, more=st.integers(-1, 1), several=st.integers(1, 3))
def test_keys_are_found_or_refused_as_the_plain_twin_does(items, probes, flips, more, several):
    for encoding, (keys, sound) in sections_of(items).items():
        wanted = sorted({*items, *probes})
        cuts = [(i * len(wanted), (i + 1) * len(wanted)) for i in range(several)]
        blocks = [OneSection(Encoded(encoding, 0, sound), len(keys), pa.int8())] * several
        rows = {key: i for i, key in enumerate(keys)}
        with kernels(are_used=True):
            found = find_in(blocks, cuts, wanted * several)
        expected = [[i * len(keys) + rows[key] if key in rows else -1 for key in wanted] for i in range(several)]
        assert found.tolist() == [row for each in expected for row in each]
        bad, decoded = damaged_block(encoding, sound, flips, len(keys) + more)
        with kernels(are_used=True):
            try:
                found = find_in([bad], cuts[:1], wanted).tolist()
            except CorruptionError:
                assert decoded is None
                continue
        # Where keys are out of order, some may be missed; none is found where it is not.
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
        blocks = [OneSection(Encoded(encoding, 0, sound), len(keys), pa.int8()) for keys, sound in held]
        asked = [(b, low, high) for b, of_block in enumerate(ranges) for low, high in of_block]
        met = [
            (n, b, i) for n, (b, low, high) in enumerate(asked) for i, key in enumerate(held[b][0]) if low <= key < high
        ]
        tails = [held[b][0][i][-width:] for _, b, i in met]
        for are_used in (True, False):
            with kernels(are_used=are_used):
                numbers, picks = find_between(blocks, ranges)
                assert len(picks.blocks) == len({b for _, b, _ in met})
                assert (numbers.tolist(), picks.rows.tolist()) == ([n for n, _, _ in met], [i for _, _, i in met])
                if any(len(tail) < width for tail in tails):
                    with pytest.raises(InvalidArgumentError, match="shorter"):
                        tails_of(picks, width)
                else:
                    assert list(map(bytes, tails_of(picks, width))) == tails
        keys, sound = section
        bad, decoded = damaged_block(encoding, sound, flips, len(keys) + more)
        with kernels(are_used=True):
            try:
                picks = find_between([bad, bad], [one, one])[1]  # of one block alone, none is compiled
                tails = tails_of(picks, width)
            except (CorruptionError, InvalidArgumentError):
                continue
        # Where keys are out of order, others may be met; what is said of them is what is there.
        assert not one or decoded is not None
        assert list(map(bytes, tails)) == [decoded[row][-width:] for row in picks.rows.tolist()]


@given(pieces=columns(), flips=FLIPS, data=st.data())
def test_values_are_taken_or_refused_as_the_plain_twin_does(pieces, flips, data):
    with kernels(are_used=False):
        encoded = [encode_column(piece) for piece in pieces]
    kind = pieces[0].type
    sections = [Encoded(one.encoding, one.flags, one.raw) for one in encoded]
    blocks = [OneSection(s, len(p), kind) for s, p in zip(sections, pieces, strict=True)]
    total = sum(map(len, pieces))
    places = np.array(sorted(data.draw(st.sets(st.integers(0, total - 1), min_size=1))))
    told = []
    for are_used in (True, False):
        with kernels(are_used=are_used):
            told.append(pa.chunked_array(take_from(Picks.of(blocks, places), 0), kind).combine_chunks())
    told[0].validate(full=True)
    assert str(told[0]) == str(told[1]) == str(pa.concat_arrays(pieces).take(pa.array(places)))  # NaN is not itself
    if not flips or not sections[-1].raw:
        return
    bad = OneSection(sections[-1]._replace(raw=damaged(sections[-1].raw, flips)), len(pieces[-1]), kind)
    every = Picks.of([bad], np.arange(len(pieces[-1])))
    outcomes = []
    for are_used in (True, False):
        with kernels(are_used=are_used):
            try:
                outcomes.append(str(pa.chunked_array(take_from(every, 0), kind).combine_chunks()))
            except CorruptionError:
                outcomes.append("refused")
    assert outcomes[0] == outcomes[1]
