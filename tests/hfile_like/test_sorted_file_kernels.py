"""The compiled twins of the sorted-block file against the plain ones: the same bytes, the same answers, and what the
plain one refuses, refused."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
import pytest
import skipstone.hfile_like
from hypothesis import assume, given
from hypothesis import strategies as st
from kernels_in_use import kernels
from skipstone import lazy
from skipstone.errors import CorruptionError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, codec, key_order, name_encoding
from skipstone.hfile_like.block_encoding import encode_bundles, encode_column, encode_fixed, encode_keys
from skipstone.hfile_like.codec import Encoded, Where, compressor_of
from skipstone.hfile_like.column_encoding import column_sections, key_sections
from skipstone.hfile_like.key_order import sorted_keys
from skipstone.hfile_like.keys import decode_keys
from skipstone.hfile_like.name_encoding import NameEncoder
from skipstone.hfile_like.names import NameStrings
from skipstone.hfile_like.scanning import joined_column, joined_keys
from skipstone.hfile_like.values import ValueColumn
from sorted_file_builders import written

CAP = 1 << 20
WHERE = Where("f", 0)


def few(items: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(items, min_size=1, max_size=3).flatmap(st.sampled_from)


PLAIN = st.integers(0, 12) | st.integers(0, 10**18 - 1) | st.integers(990, 1010)


@st.composite
def names(draw) -> list[bytes]:
    """Names of one make, whose fields are of every kind, and some say the same as others."""
    count = draw(st.integers(1, 40))
    seed = draw(st.integers(0, 2**32))
    random = np.random.default_rng(seed)
    forms = draw(st.lists(st.sampled_from("pPlcrsuvhH-"), min_size=1, max_size=7))
    fields: list[list[str]] = []
    codes, drawn = random.integers(0, draw(st.integers(1, 12)), count), random.integers(0, 500, count)
    for form in forms:
        if form == "p":
            fields.append([str(n) for n in random.integers(0, 10 ** draw(st.integers(1, 17)), count)])
        elif form == "P":
            fields.append([f"{n:07d}" for n in random.integers(0, 10**7, count)])
        elif form == "l":
            fields.append([str(5 + draw(st.just(3)) * i) for i in range(count)])
        elif form == "c":
            fields.append([str(n) for n in np.cumsum(random.integers(0, 9, count))])
        elif form == "r":
            fields.append([str((71, 9_000, 1_000_003)[c % 3] + n) for c, n in zip(codes, drawn, strict=True)])
        elif form == "s":
            fields.append([str(n) for n in (drawn if draw(st.booleans()) else codes * 1_000_007 + 10)])
        elif form in "uv":
            raw = np.sort(random.integers(0, 256, (count, 16), dtype=np.uint8), axis=0) if form == "u" else None
            raw = random.integers(0, 256, (count, 16), dtype=np.uint8) if raw is None else raw
            raw[:, 6] = raw[:, 6] & 0x0F | (0x40 if draw(st.booleans()) else 0x10)
            raw[:, 8] = raw[:, 8] & 0x3F | 0x80
            text = [row.tobytes().hex() for row in raw]
            fields.append([f"{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}" for t in text])
        elif form in "hH":
            size = 4 if form == "h" else 7
            fields.append(["a" + random.bytes(size).hex() + "f" for _ in range(count)])
        else:
            fields.append(["part"] * count)
    rows = ["x" + "_".join(pieces) for pieces in zip(*fields, strict=True)]
    if draw(st.integers(0, 9)) == 0:
        rows[-1] = draw(st.sampled_from(["", "x", "x1_2_3_4_", "x" + "9" * 30]))
    return [row.encode() for row in (sorted(rows) if draw(st.booleans()) else rows)]


@given(items=names(), is_valid=st.lists(st.booleans(), min_size=40, max_size=40))
def test_names_are_encoded_to_the_same_bytes_and_read_the_same(items, is_valid):
    column = pa.array([b"before", *items], pa.binary())[1:]
    valid = np.array(is_valid[: len(items)])
    rows = np.array([i for i in range(len(items)) if is_valid[-i]], dtype=np.int64)
    for live in (None, valid if valid.any() else None):
        for guess in name_encoding.guesses_of(column, live):
            with kernels(are_used=False):
                plain = name_encoding.encode_guess(guess, column, live)
            with kernels(are_used=True):
                compiled = name_encoding.encode_guess(guess, column, live)
            assert compiled == plain
            if plain is None:
                continue
            for use in (False, True):
                with kernels(are_used=use):
                    names = NameStrings(pa.binary(), len(items), plain[0], 0, CAP, WHERE)
                    whole, some = names.take(slice(0, len(items)), live), names.take(rows, None)
                whole.validate(full=True)
                assert whole.to_pylist() == [
                    v if live is None or ok else None for v, ok in zip(items, valid, strict=True)
                ]
                assert live is not None or some.to_pylist() == [items[i] for i in rows]


def outcome(encoding: int, raw: bytes, count: int) -> list[bytes] | None:
    try:
        keys = decode_keys(encoding, memoryview(raw), count, CAP, WHERE)
        found = keys.to_arrow()
        found.validate(full=True)
        return found.to_pylist()
    except CorruptionError:
        return None


FLIPS = st.lists(st.tuples(st.integers(0, 2**16), st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128])), max_size=3)


def damaged(raw: bytes, flips: list[tuple[int, int]]) -> bytes:
    data = bytearray(raw)
    for place, bit in flips:
        data[place % len(data)] ^= bit
    return bytes(data)


def names_outcome(raw: bytes, count: int) -> list[bytes] | None:
    try:
        found = NameStrings(pa.binary(), count, raw, 0, CAP, WHERE).take(slice(0, count), None)
        found.validate(full=True)
        return found.to_pylist()
    except CorruptionError:
        return None


@given(items=names(), flips=FLIPS, cut=st.integers(0, 3), more=st.integers(-1, 1))
def test_what_is_damaged_is_refused_by_both_or_reads_the_same(items, flips, cut, more):
    column = pa.array(sorted(set(items)), pa.binary())
    sections = {2: encode_bundles(column)}
    if len({len(item) for item in items}) == 1:
        sections[1] = encode_fixed(column)
    encoded = name_encoding.NameEncoder().encode(column, None)
    if encoded is not None:
        sections[8] = encoded[0]
    for encoding, raw in sections.items():
        # Most of a template's meaning is in its first bytes: half of the flips go there.
        near = [(place % 400 if i % 2 else place, bit) for i, (place, bit) in enumerate(flips)]
        bad = damaged(raw[: len(raw) - 8 * cut] or raw, near)
        count = max(1, len(column) + more)
        with kernels(are_used=False):
            plain = names_outcome(bad, count) if encoding == 8 else outcome(encoding, bad, count)
        with kernels(are_used=True):
            if encoding == 8:
                assert names_outcome(bad, count) == plain
                continue
            assert outcome(encoding, bad, count) == plain
            joined = joined_keys([Encoded(encoding, 0, bad)] * 2, [count] * 2, CAP)
        assert joined is None or joined.to_pylist() == 2 * plain


KEYS = st.sets(
    st.binary(max_size=3)
    | st.binary(min_size=20, max_size=40)
    | st.text("ab", max_size=30).map(str.encode)
    | st.binary(min_size=9, max_size=9).map(lambda some: b"shared" + some),
    min_size=1,
    max_size=80,
)


@st.composite
def cuts(draw, count: int) -> np.ndarray:
    """Where blocks of some rows begin, and where the last ends."""
    inside = draw(st.sets(st.integers(1, count - 1), max_size=5)) if count > 1 else set()
    return np.array([0, *sorted(inside), count], dtype=np.int64)


@given(items=KEYS, data=st.data())
def test_keys_of_many_blocks_are_the_same_bytes_as_of_each(items, data):
    widths = {len(item) for item in items}
    of_one_width = data.draw(st.sampled_from([None, *sorted(widths)]))
    chosen = sorted(item for item in items if of_one_width in (None, len(item)))
    column = pa.array([b"before", *chosen], pa.binary())[1:]
    bounds = data.draw(cuts(len(chosen)))
    with kernels(are_used=False):
        plain = key_sections(column, bounds, compressor_of("zstd"))
    assert plain == [encode_keys(column[a:b], compressor_of("zstd")) for a, b in pairwise(bounds.tolist())]
    with kernels(are_used=True):
        assert same(key_sections(column, bounds, compressor_of("zstd")), plain)
        raw = encode_bundles(column)
        assert joined_keys([Encoded(2, 0, raw)] * 3, [len(chosen)] * 3, CAP).to_pylist() == chosen * 3


def same(some: list[Encoded], others: list[Encoded]) -> bool:
    return [one._replace(raw=bytes(one.raw)) for one in some] == [one._replace(raw=bytes(one.raw)) for one in others]


@given(width=st.integers(1, 40), count=st.integers(1, 40), seed=st.integers(0, 99), shared=st.integers(0, 9))
def test_transposed_keys_of_any_width_are_the_same(width, count, seed, shared):
    rows = np.random.default_rng(seed).integers(0, 256, (count, width), dtype=np.uint8)
    rows[:, : min(shared, width - 1)] = 7
    items = sorted({row.tobytes() for row in rows})
    raw = encode_fixed(pa.array(items, pa.binary()))
    with kernels(are_used=True):
        assert joined_keys([Encoded(1, 0, raw)] * 2, [len(items)] * 2, CAP).to_pylist() == items * 2


def kernels_used_or_not() -> Iterator[bool]:
    for are_used in (False, True):
        with kernels(are_used=are_used):
            yield are_used


KINDS = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32(),
    pa.float64(), pa.bool_(), pa.date32(), pa.time32("ms"), pa.time64("us"), pa.timestamp("us", "UTC"),
    pa.duration("s"), pa.decimal128(20, 3), pa.binary(5), pa.string(), pa.binary(), pa.large_string(),
]  # fmt: skip


@st.composite
def columns(draw) -> list[pa.Array]:
    """A column in pieces, as the blocks of a file hold it."""
    kind = draw(st.sampled_from(KINDS))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    pieces = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 30))
        if pa.types.is_boolean(kind):
            column = pa.array(random.random(count) < draw(st.sampled_from([0.0, 0.5, 1.0])))
        elif kind in (pa.string(), pa.binary(), pa.large_string()):
            texts = ["", "é", "long" * 5, "b"] if draw(st.booleans()) else [f"p{i * 7}-{i}" for i in range(99)]
            column = pa.array(random.choice(texts, count).tolist(), pa.string()).cast(kind)
        else:
            spread = draw(st.sampled_from([0, 1, 1 << 8, 1 << 20, 1 << 40]))
            base, step = random.integers(0, 256, 16, dtype=np.uint8), draw(st.sampled_from([0, 3, -5]))
            numbers = random.integers(0, spread + 1, count) + np.arange(count) * step
            wide = np.zeros((count, 16), dtype=np.uint8) + base
            wide[:, :8] = (wide[:, :8].copy().view("<i8")[:, 0] + numbers).astype("<i8").view(np.uint8).reshape(-1, 8)
            if pa.types.is_decimal(kind):
                wide[:, 7:] = 0
            elif pa.types.is_time(kind) or pa.types.is_date(kind):
                wide[:] = (numbers % 86_400).astype("<i8").repeat(2).view(np.uint8).reshape(-1, 16)
            data = np.ascontiguousarray(wide[:, : kind.byte_width])
            column = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])
        share = draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]))
        missing = pa.array(random.random(count) < share)
        pieces.append(pa.compute.if_else(missing, pa.nulls(count, kind), column))
    return pieces


def _bits(array: pa.Array) -> pa.Array:
    """Floats as integers: NaN is not equal to itself."""
    is_float = pa.types.is_floating(array.type)
    return array.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[array.type.bit_width]) if is_float else array


@given(pieces=columns(), flips=FLIPS)
def test_columns_are_encoded_and_read_the_same(pieces, flips):
    with kernels(are_used=False):
        encoded = [encode_column(piece) for piece in pieces]
    whole, bounds = pa.concat_arrays([pieces[0], *pieces])[len(pieces[0]) :], np.cumsum([0, *map(len, pieces)])
    several = [column_sections(whole, bounds, False, NameEncoder()) for _ in kernels_used_or_not()]
    assert same(*several)
    with kernels(are_used=True):
        assert all(
            same(column_sections(piece, np.array([0, len(piece)]), False, NameEncoder()), [one])
            for piece, one in zip(pieces, encoded, strict=True)
        )
        sections = [Encoded(one.encoding, one.flags, one.raw) for one in encoded]
        joined = joined_column(pieces[0].type, sections, [len(piece) for piece in pieces], CAP)
    assert joined is None or _bits(joined).equals(_bits(pa.concat_arrays(pieces)))
    assert joined is not None or pieces[0].type == pa.large_string() or {8, 9} & {one.encoding for one in encoded}
    if joined is not None:
        joined.validate(full=True)
    assume(flips and sections[-1].raw)
    bad = sections[-1]._replace(raw=damaged(sections[-1].raw, flips))
    try:
        with kernels(are_used=False):
            plain = ValueColumn(
                pieces[0].type, len(pieces[-1]), bad.encoding, bad.flags, bad.raw, CAP, WHERE
            ).to_arrow()
            plain.validate(full=True)
    except (CorruptionError, pa.ArrowInvalid):
        plain = None
    with kernels(are_used=True):
        again = joined_column(pieces[0].type, [bad, bad], [len(pieces[-1])] * 2, CAP)
    if plain is not None and again is not None:
        assert again.equals(pa.concat_arrays([plain, plain])) or pa.types.is_floating(pieces[0].type)


def test_many_blocks_scan_as_one_block_does():
    keys = [f"d={i // 500}/part-{i:06d}-{i * 7919 % 1000}.parquet".encode() for i in range(3_000)]
    values = pa.record_batch({
        "n": pa.array([None if i % 9 == 0 else i * i for i in range(3_000)], pa.int64()),
        "s": pa.array([f"city {i % 700}" for i in range(3_000)]),
        "b": pa.array([i % 3 == 0 for i in range(3_000)]),
    })  # fmt: skip
    gone = [i % 17 == 0 for i in range(3_000)]
    reader = SortedFileReader(written(keys, values, gone, block_size=2_000))
    whole = SortedFileReader(written(keys, values, gone, block_size=1 << 23))
    assert (reader.num_blocks > 50, whole.num_blocks) == (True, 1)
    for use in (False, True):
        with kernels(are_used=use):
            for options in (
                {},
                {"include_deleted": True},
                {"columns": ["s"]},
                {"start": keys[70], "stop": keys[2_345]},
            ):
                some, same = reader.scan_table(**options), whole.scan_table(**options)
                assert some.equals(same)
                some.validate(full=True)


def unsorted(seed: int, count: int, form: str, values: int) -> pa.BinaryArray:
    """Keys in any order, some of them equal; none is the beginning of another."""
    random = np.random.default_rng(seed)
    chosen = random.integers(0, values, count)
    if form == "strings":
        width = 1 + seed % 17
        items = [b"shared"[: seed % 7] + b"%0*d\0" % (width if seed % 2 else 0, v * 7919) for v in chosen.tolist()]
    else:
        table = random.integers(0, 256 if form == "random" else 3, (values, 1 + seed % 29), dtype=np.uint8)
        table[:, : seed % 5] = 7
        items = [row.tobytes() for row in table[chosen]]
    return pa.array([b"before", *items], pa.binary())[1:]


def check_order(keys: pa.BinaryArray) -> None:
    with kernels(are_used=False):
        plain_order, plain_ties = sorted_keys(keys)
    with kernels(are_used=True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_order, "_differ_early", lambda _: False)
        order, ties = sorted_keys(keys)
    listed = keys.to_pylist()
    assert order.tolist() == plain_order.tolist() == sorted(range(len(listed)), key=listed.__getitem__)
    ranked = [listed[i] for i in order]
    assert ties.tolist() == plain_ties.tolist() == [i > 0 and ranked[i] == ranked[i - 1] for i in range(len(ranked))]


FORMS = ("strings", "random", "few bytes")


@given(seed=st.integers(0, 2**32), count=st.integers(0, 300), form=st.sampled_from(FORMS), values=st.integers(1, 400))
def test_keys_are_sorted_the_same(seed, count, form, values):
    check_order(unsorted(seed, count, form, values))


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="so many keys take minutes")
@pytest.mark.parametrize("seed", [13, 18])  # widths of 14 and 19, or of several
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("count", "values"), [(20_000, 50_000), (200_000, 90_000)])
def test_many_keys_are_sorted_the_same(count, values, form, seed):
    check_order(unsorted(seed, count, form, values))


@given(pieces=columns(), block_bytes=st.sampled_from([1, 60, 400]), at_once=st.integers(1, 40), compact=st.booleans())
def test_a_file_is_the_same_bytes_however_it_is_written(pieces, block_bytes, at_once, compact):
    column = pa.concat_arrays(pieces)
    keys = [b"%d" % (i // 9) + b"-%05d" % i for i in range(len(column))]
    keys.sort()
    options = {"compact": ["v"]} if compact and pa.types.is_integer(column.type) else {}
    files = []
    for are_used in (False, True):
        for step in (at_once, len(keys)):
            target = io.BytesIO()
            with (
                kernels(are_used=are_used),
                SortedFileWriter(
                    target, schema=pa.schema([("v", column.type)]), block_size=block_bytes, **options
                ) as writer,
            ):
                for low in range(0, len(keys), step):
                    writer.write(keys[low : low + step], pa.record_batch({"v": column[low : low + step]}))
            files.append(target.getvalue())
    assert len(set(files)) == 1


WARM = """
import io
import pyarrow as pa
from skipstone import lazy
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs
from skipstone.hfile_like.codec import crc32
from skipstone.hfile_like.key_order import sorted_keys

loaded = {{name: lazy.load(name) for name in {modules}}}
crc32(bytes(100_000))
keys = [f'd={{i // 500}}/part-{{i:06d}}-{{i * 7919 % 1000}}.parquet'.encode() for i in range(9_000)]
values = pa.record_batch({{'n': [i * i for i in range(9_000)], 's': [f'c {{i % 700}}' for i in range(9_000)]}})
for some in (keys, [key[::-1] for key in sorted(key[::-1] for key in keys)]):
    runs = []
    for each in (1, 3):
        target = io.BytesIO()
        with SortedFileWriter(target, schema=values.schema) as writer:
            writer.write(sorted(some)[::each], values[: len(some[::each])])
        runs.append(target.getvalue())
    assert SortedFileReader(runs[0]).scan_table().num_rows == 9_000
    assert all(SortedFileReader(runs[0]).get_many(some)['found'].to_pylist())
    assert merge_runs(runs, io.BytesIO()).num_entries == 9_000
    assert len(sorted_keys(pa.array(some, pa.binary()))[0]) == 9_000
with SortedFileWriter(target := io.BytesIO(), schema=values.schema, block_size=1 << 20) as writer:
    writer.write([b'p' + i.to_bytes(8, 'big') for i in range(9_000)], values)
some = SortedFileReader(target.getvalue()).numbered(b'p').scan(['n'], bounds={{'n': (100, 400)}})
assert some.columns['n'].to_pylist() == [i * i for i in range(10, 21)]
for name, module in loaded.items():
    stats = [kernel.stats for kernel in vars(module).values() if hasattr(kernel, 'stats')]
    print(name, sum(sum(s.cache_misses.values()) for s in stats), sum(sum(s.cache_hits.values()) for s in stats))
"""


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="it is about the compiler's cache")
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0"}
    there = Path(skipstone.hfile_like.__file__).parent.glob("kernels_*.py")
    modules = [f"hfile_like.{path.stem}" for path in sorted(there)]
    program = WARM.format(modules=modules)

    def counts() -> dict[str, tuple[int, int]]:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300
        )
        assert done.returncode == 0, done.stderr
        told = [line.split() for line in done.stdout.splitlines()]
        return {module: (int(misses), int(hits)) for module, misses, hits in told}

    counts()
    # Of every module something was used, and nothing compiled.
    again = counts()
    assert len(again) == len(modules) >= 3
    assert all(not misses and hits for misses, hits in again.values()), again


WIDTHS = st.sampled_from([0, 3, 1 << 8, 1 << 16, 1 << 24, 1 << 32, 1 << 40, 1 << 48, (1 << 63) - 1])
EDGES = st.sampled_from([-(1 << 64), -(1 << 63), -(1 << 63) + 1, -1, 0, 1, (1 << 63) - 2, (1 << 63) - 1, 1 << 64])


@st.composite
def int64_columns(draw, count: int) -> list[int | None]:
    """Integers in no order or along a line, over a span of any width, at the ends of their type or between."""
    seed, span = draw(st.integers(0, 2**32)), draw(WIDTHS)
    lowest = -(1 << 63)
    base = draw(st.sampled_from([lowest, (1 << 63) - 1 - span, -7]) | st.integers(lowest, (1 << 63) - 1 - span))
    values = np.random.default_rng(seed).integers(base, base + span, count, endpoint=True).tolist()
    if draw(st.booleans()):
        values = sorted(values)
    for i in draw(st.lists(st.integers(0, count - 1), max_size=3)) if draw(st.integers(0, 3)) == 0 else []:
        values[i] = None
    return values


@given(
    count=st.integers(1, 90),
    deleted=st.lists(st.integers(0, 89), max_size=2),
    block=st.sampled_from([64, 1 << 20]),
    data=st.data(),
)
def test_entries_within_bounds(count, deleted, block, data):
    """The compiled and the plain way give the same entries: those of which every value lies within its bounds, besides
    nulls and tombstones."""
    columns = {name: data.draw(int64_columns(count)) for name in "ab"} | {"c": list(range(count))}
    gone = [i in deleted for i in range(count)] if data.draw(st.booleans()) else [False] * count
    limit = EDGES | st.sampled_from([v for v in (*columns["a"], *columns["b"]) if v is not None] or [0])
    named = data.draw(st.lists(st.sampled_from("ab"), unique=True))
    bounds = {name: (data.draw(limit), data.draw(limit)) for name in named}
    numbers = data.draw(st.just(range(count)) | st.sets(st.integers(0, (1 << 64) - 1), min_size=count, max_size=count))
    keys = [b"p" + number.to_bytes(8, "big") for number in sorted(numbers)]
    batch = pa.record_batch({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    options = {"compression": data.draw(st.sampled_from(["none", "auto"]))}
    file = written(
        keys, batch, gone, block_size=block, summaries=data.draw(st.sampled_from([[], ["a", "b"]])), **options
    )

    def scanned() -> list[dict]:
        found = SortedFileReader(file).numbered(b"p").scan(include_deleted=True, bounds=bounds)
        arrays = {**found.columns, "deleted": pa.array(found.deleted), "number": pa.array(found.numbers)}
        return pa.table(arrays).to_pylist()

    with kernels(are_used=False):
        plain = scanned()
    with kernels(are_used=True):
        compiled = scanned()
    assert compiled == plain
    rows = [dict(zip("abc", row, strict=True)) for row in zip(*columns.values(), strict=True)]
    expected = [
        row["c"]
        for row, is_gone in zip(rows, gone, strict=True)
        if is_gone or all(row[n] is None or low <= row[n] <= high for n, (low, high) in bounds.items())
    ]
    found = [row["c"] for row in compiled]
    assert set(expected) <= set(found)
    for row in compiled:
        number = int.from_bytes(keys[row["c"]][1:], "big")
        assert row == {**rows[row["c"]], "deleted": gone[row["c"]], "number": number}


@pytest.mark.parametrize("broken", ["a", "b"])
def test_damage_within_bounds_is_found(broken):
    """The compiled code compares the sections that it reads, and says what the plain one does."""
    count = 500
    numbers = np.random.default_rng(1).integers(0, 1 << 38, (2, count))
    batch = pa.record_batch({name: pa.array(column) for name, column in zip("ab", numbers, strict=True)})
    file = bytearray(written([b"p" + i.to_bytes(8, "big") for i in range(count)], batch, compression="none"))
    reader = SortedFileReader(bytes(file))
    start, stop, _ = next(reader.read_blocks([0])).frame_place("ab".index(broken))
    file[reader.blocks()[0].offset + (start + stop) // 2] ^= 4
    for are_used in (True, False):
        with kernels(are_used=are_used), pytest.raises(CorruptionError) as error:
            SortedFileReader(bytes(file)).numbered(b"p").scan(bounds={"a": (5, 1 << 37), "b": (5, 1 << 37)})
        assert error.value.check == "section checksum"


@given(
    data=st.binary(max_size=400) | st.integers(0, 3_000).map(lambda size: np.random.default_rng(size).bytes(size)),
    offset=st.integers(0, 70),
    before=st.integers(0, 2**32 - 1),
)
def test_a_checksum_is_the_one_of_zlib(data, offset, before):
    compiled = importlib.import_module("skipstone.hfile_like.kernels_blocks")
    view = memoryview(data)[offset:]
    assert compiled.crc32(lazy.read_only(view), before) == zlib.crc32(view, before)


def test_a_checksum_of_much_is_the_one_of_zlib(monkeypatch):
    data = np.random.default_rng(8).bytes(100_003)
    for loaded in (None, importlib.import_module("skipstone.hfile_like.kernels_blocks")):
        monkeypatch.setitem(lazy._loaded, "hfile_like.kernels_blocks", loaded)
        for size in (0, 1, 20_000, 65_536, 100_003):
            assert codec.crc32(data[:size], 7) == zlib.crc32(data[:size], 7)
            assert codec.checksum_at(5, data[:10], memoryview(data)[10:size]) == zlib.crc32(
                data[:10] + data[10:size]
            ) ^ zlib.crc32((5).to_bytes(8, "little"))


@pytest.mark.parametrize("width", [0, 1, 63, 64, 65, 300])
@pytest.mark.parametrize("is_strided", [False, True])
def test_checksums_of_rows_are_those_of_zlib(monkeypatch, width, is_strided):
    """Each row's, bound to its place: by compiled code, and without."""
    rows = np.random.default_rng(width).integers(0, 256, (1_000, 2 * width), dtype=np.uint8)
    rows = rows[:, ::2] if is_strided else np.ascontiguousarray(rows[:, :width])
    offsets = np.arange(1_000, dtype=np.uint64) * np.uint64(width + 4) + np.uint64(17)
    wanted = [zlib.crc32(bytes(row)) ^ codec.place_crc(int(place)) for row, place in zip(rows, offsets, strict=True)]
    for loaded in (None, importlib.import_module("skipstone.hfile_like.kernels_blocks")):
        monkeypatch.setitem(lazy._loaded, "hfile_like.kernels_blocks", loaded)
        assert codec.row_checksums(np.ascontiguousarray(rows), offsets).tolist() == wanted


def test_a_long_scan_that_is_left_leaves_no_thread_and_no_damage_unseen():
    keys = [b"%06d-%s" % (i, bytes([97 + i % 7]) * (i % 5)) for i in range(40_000)]
    data = bytearray(written(keys, pa.record_batch({"n": range(40_000)}), block_size=1_000))
    with kernels(are_used=True):
        reader = SortedFileReader(bytes(data))
        assert reader.num_blocks > 6 * 64
        scan = reader.scan()
        for _ in range(5):
            next(scan)
        assert any(thread.name.startswith("skipstone-decode") for thread in threading.enumerate())
        scan.close()
        assert not any(thread.name.startswith("skipstone-decode") for thread in threading.enumerate())
        assert reader.scan_table()["key"].to_pylist() == keys
        last = reader.blocks()[-1]
        data[last.offset + 16 + 3 * 16 + 2] ^= 1
        with pytest.raises(CorruptionError):
            SortedFileReader(bytes(data)).scan_table()
    assert not any(thread.name.startswith("skipstone-decode") for thread in threading.enumerate())


@given(
    count=st.integers(1, 400),
    width=st.sampled_from([1, 3, 40, 1 << 13]),
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=2),
    gone=st.booleans(),
    data=st.data(),
)
def test_many_blocks_within_bounds(count, width, damage, gone, data):
    """Columns that alone are asked for come of many blocks in one call; what it leaves, block by block: the same
    entries, and the same words for damage wherever it lies."""
    random = np.random.default_rng(count)
    values = {name: random.integers(-(1 << width % 61), 1 << width % 61, count) for name in "ab"}
    keys = [b"o" + i.to_bytes(2, "big") for i in range(data.draw(st.sampled_from([0, 9])))]
    keys += [b"p" + (7 * i + (i > 50)).to_bytes(8, "big") for i in range(count)]
    columns = {name: np.concatenate([np.zeros(len(keys) - count, int), each]) for name, each in values.items()}
    deleted = [gone and i % 90 == 3 for i in range(len(keys))]
    file = bytearray(
        written(keys, pa.record_batch(columns), deleted, block_size=data.draw(st.sampled_from([256, 4096])))
    )
    end = SortedFileReader(bytes(file)).blocks()[-1]
    for place, bit in damage:
        file[int(place * (end.offset + end.length))] ^= 1 << bit
    bounds = {"b": (-(1 << width % 60), 5), "a": (-3, 1 << width % 61)}

    def scanned() -> object:
        try:
            reader = SortedFileReader(bytes(file))
            within = reader.block_range(b"p")
            chosen = np.array([i for i in within if i % 5 != 2], dtype=np.int64)
            found = reader.numbered(b"p").scan(["a", "b"], blocks=chosen, include_deleted=True, bounds=bounds)
            return found.numbers.tolist(), found.deleted.tolist(), [c.to_pylist() for c in found.columns.values()]
        except CorruptionError as error:
            return error.check, error.offset, str(error)

    with kernels(are_used=False):
        plain = scanned()
    with kernels(are_used=True):
        assert scanned() == plain
