"""Column chunks of dictionary codes: counts and rows are those of the values that pyarrow reads, by compiled code and
without it, and damage is an error or left to pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np
import predicate_strategies as base
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from hypothesis import given
from hypothesis import strategies as st
from kernels_in_use import kernels
from skipstone.engine.parquet import coded_chunks
from skipstone.engine.parquet.coded_chunks import CodedChunk, coded_chunk
from skipstone.engine.parquet.page_headers import (
    DATA_PAGE,
    DICTIONARY_PAGE,
    KeptPages,
    StoredPages,
    header_at,
    headers_in,
)
from skipstone.engine.parquet.page_rows import only
from skipstone.engine.parquet.thrift import I32, STRUCT, a_struct, an_int, varint

VALUES = {
    pa.string(): ["", "a", "ä b", "x" * 300, "nought", "kind 1", "kind 2"],
    pa.large_binary(): [b"", b"\0", b"\xff" * 20, b"abc"],
    pa.int64(): [0, -1, 2**63 - 1, -(2**63), 7],
    pa.uint32(): [0, 2**32 - 1, 5],
    pa.date32(): [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31)],
    pa.float32(): [0.0, -0.0, 1.5, float("inf"), float("nan")],
    pa.float64(): [0.0, -0.0, -1e300, float("-inf"), float("nan")],
    pa.timestamp("ms"): [datetime(1970, 1, 1), datetime(2020, 2, 2, 2)],
    pa.timestamp("us", "UTC"): [datetime(1970, 1, 1), datetime(1960, 2, 2, 2)],
    pa.timestamp("ns"): [datetime(1970, 1, 1), datetime(1960, 2, 2, 2)],
    pa.int8(): [0, -128, 127],
    pa.decimal128(9, 2): [1, 2, 3],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b", "c"],
}


@st.composite
def chunks(draw: st.DrawFn) -> bytes:
    """A file of one column `x` of few values, in any of Parquet's forms."""
    kind = draw(st.sampled_from(list(VALUES)))
    many = draw(st.booleans()) and kind == pa.int64()
    values = list(range(draw(st.integers(1, 400)))) if many else VALUES[kind]
    picked = st.tuples(st.integers(0, len(values) - 1), st.integers(1, draw(st.sampled_from([1, 3, 60]))))
    rows = [values[i] for i, n in draw(st.lists(picked, max_size=60)) for _ in range(n)]
    if draw(st.booleans()):
        rows = [None if draw(st.integers(0, 3)) == 0 else value for value in rows]
    is_required = None not in rows and draw(st.booleans())
    table = pa.table({"x": pa.array(rows, kind)}, schema=pa.schema([pa.field("x", kind, nullable=not is_required)]))
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=draw(st.integers(1, 1000)),
        data_page_size=draw(st.sampled_from([1, 50, 1 << 20])),
        write_batch_size=draw(st.sampled_from([1, 7, 64, 1024])),
        data_page_version=draw(st.sampled_from(["1.0", "2.0"])),
        compression=draw(st.sampled_from(["none", "snappy", "gzip", "brotli", "zstd", "lz4"])),
        use_dictionary=draw(st.sampled_from([True, True, True, False])),
        dictionary_pagesize_limit=draw(st.sampled_from([1, 30, 1 << 20])),
        write_page_checksum=draw(st.booleans()),
        store_schema=draw(st.booleans()),
    )
    return sink.getvalue().to_pybytes()


@contextmanager
def walking(are_used: bool) -> Iterator[None]:
    before, coded_chunks._RUNS_PLAIN_MAX = coded_chunks._RUNS_PLAIN_MAX, 1 << 30
    try:
        with kernels(are_used=are_used):
            yield
    finally:
        coded_chunks._RUNS_PLAIN_MAX = before


def _chunks_of(stored: bytes, whole: bytes | None = None) -> Iterator[tuple[CodedChunk | None, pa.Array]]:
    """Each chunk of a file's column, of bytes that may be damaged, and what pyarrow reads of the whole ones."""
    file = pq.ParquetFile(pa.BufferReader(whole or stored))
    file.arrow_schema = file.schema_arrow
    for group in range(file.metadata.num_row_groups):
        column = file.read_row_group(group).column(0).combine_chunks()
        chunk = coded_chunk(file, group, "x", lambda offset, length: stored[offset : offset + length])
        yield chunk, column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _texts(values: pa.Array) -> list[str]:
    return [repr(row) for row in base.rows_of(pa.table({"x": values}))]


def _check(chunk: CodedChunk, column: pa.Array, wanted_values: set[str]) -> bool:
    values, counted = chunk.values(), chunk.counts()
    if values is None or counted is None:
        return False
    counts, null_count = counted
    assert values.type == column.type and len(values) == len(counts) and null_count == column.null_count
    of_value: Counter[str] = Counter()
    for text, count in zip(_texts(values), counts.tolist(), strict=True):
        of_value[text] += count
    assert +of_value == Counter(_texts(column.drop_null()))
    wanted = np.array([text in wanted_values for text in _texts(values)], dtype=bool)
    found = chunk.rows_of(wanted)
    assert (found is None) == (column.null_count > 0)
    if found is not None:
        rows, codes = found
        of_rows = _texts(column)
        assert rows.tolist() == [row for row, text in enumerate(of_rows) if text in wanted_values]
        of_codes = _texts(values)
        assert [of_codes[code] for code in codes.tolist()] == [of_rows[row] for row in rows.tolist()]
    return True


@given(chunks(), st.booleans(), st.data())
def test_counts_and_rows_are_those_of_the_values(stored: bytes, are_used: bool, data: st.DataObject) -> None:
    with walking(are_used):
        for chunk, column in _chunks_of(stored):
            if chunk is not None:
                texts = sorted(set(_texts(column)))
                assert _check(chunk, column, data.draw(st.sets(st.sampled_from(texts))) if texts else set())


@pytest.mark.parametrize("kind", VALUES, ids=str)
@pytest.mark.parametrize("are_used", [False, True])
def test_what_is_counted_by_codes(kind: pa.DataType, are_used: bool) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": pa.array(VALUES[kind] * 500, kind)}), sink, data_page_size=100)
    with walking(are_used):
        ((chunk, column),) = _chunks_of(sink.getvalue().to_pybytes())
        assert (chunk is None) == (kind in (pa.int8(), pa.decimal128(9, 2)))
        assert chunk is None or _check(chunk, column, set(_texts(column)[:1]))


@given(chunks(), st.booleans(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3))
def test_damaged_chunks_are_refused_or_within_bounds(
    stored: bytes, are_used: bool, flips: list[tuple[int, int]]
) -> None:
    damaged = bytearray(stored)
    for place, bits in flips:
        damaged[4 + place % (len(stored) - 4)] ^= bits
    with walking(are_used):
        try:
            for chunk, column in _chunks_of(bytes(damaged), stored):
                counted = None if chunk is None else chunk.counts()
                if chunk is not None and counted is not None:
                    assert counted[0].sum() + counted[1] == len(column)
                    values = chunk.values()
                    assert values is None or len(values) == len(counted[0])
                    found = chunk.rows_of(np.ones(chunk.values_count, dtype=bool))
                    assert found is None or len(found[0]) == len(column)
        except ss.CorruptionError as error:
            assert "checksum" in str(error)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_a_page_that_fails_its_checksum_is_not_counted(version: str, codec: str) -> None:
    sink = pa.BufferOutputStream()
    rows = pa.table({"x": [f"kind {i * i % 13}" for i in range(5_000)]})
    pq.write_table(rows, sink, compression=codec, data_page_version=version, write_page_checksum=True)
    stored = sink.getvalue().to_pybytes()
    chunk = pq.ParquetFile(pa.BufferReader(stored)).metadata.row_group(0).column(0)
    for place in (chunk.data_page_offset - 2, chunk.dictionary_page_offset + chunk.total_compressed_size - 2):
        damaged = stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :]
        with pytest.raises(ss.CorruptionError, match="checksum"):
            list(_chunks_of(damaged, stored))


@st.composite
def strange_chunks(draw: st.DrawFn) -> tuple[bytes, str, int, int, list[bytes], list[int] | None]:
    """(a chunk of a dictionary and pages of runs, such as no writer makes them; its physical type; 1 where rows may be
    null, and 2 more where it is Snappy's; its rows; the plain values; the codes, None where there are too few)."""
    kind, level, codec = draw(st.sampled_from(["INT32", "BYTE_ARRAY"])), draw(st.integers(0, 1)), draw(st.booleans())
    values_count = draw(st.integers(1, 300))
    values = [(b"%d" % i * (i % 5)) if kind == "BYTE_ARRAY" else i.to_bytes(4, "little") for i in range(values_count)]
    behind = [len(value).to_bytes(4, "little") if kind == "BYTE_ARRAY" else b"" for value in values]
    values = [a + b for a, b in zip(behind, values, strict=True)]
    pages = [(DICTIONARY_PAGE, values_count, 0, b"".join(values))]
    codes: list[int] | None = []
    drawn_runs = st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=12)
    for width, runs, seed in draw(st.lists(st.tuples(st.integers(0, 25), drawn_runs, st.integers(0, 99)), max_size=3)):
        random, data, of_page = np.random.default_rng(seed), bytearray([width]), []
        for is_packed, size in runs:
            drawn = random.integers(0, min(1 << width, values_count), 8 * size if is_packed else 1).tolist()
            if is_packed:
                data += varint(size << 1 | 1)
                data += sum(code << (width * i) for i, code in enumerate(drawn)).to_bytes(size * width, "little")
            else:
                data += varint(size << 1) + drawn[0].to_bytes((width + 7) // 8, "little")
            of_page += drawn if is_packed else drawn * size
        rows = max(0, len(of_page) - draw(st.integers(-1, 7)))
        is_known = rows <= len(of_page) and width <= 24 and all(size for _, size in runs)
        codes = [*codes, *of_page[:rows]] if is_known and codes is not None else None
        run = varint(rows << 1) + b"\1" if level else b""
        pages.append((DATA_PAGE, rows, 8, (len(run).to_bytes(4, "little") + run if level else b"") + bytes(data)))
    stored = b""
    for page, count, encoding, body in pages:
        body_stored = pa.Codec("snappy").compress(body, asbytes=True) if codec else body
        own = [(1, I32, an_int(count)), (2, I32, an_int(encoding)), (3, I32, an_int(3)), (4, I32, an_int(3))]
        sizes = [(2, I32, an_int(len(body))), (3, I32, an_int(len(body_stored)))]
        place = 7 if page == DICTIONARY_PAGE else 5
        stored += a_struct((1, I32, an_int(page)), *sizes, (place, STRUCT, a_struct(*own))) + body_stored
    row_count = sum(count for page, count, _, _ in pages if page == DATA_PAGE)
    return stored, kind, level + 2 * codec, row_count, values, codes


class _Leaf(NamedTuple):
    physical_type: str
    max_definition_level: int


@given(
    chunk=strange_chunks(),
    flips=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 255)), max_size=2),
    wanted=st.sets(st.integers(0, 600), min_size=1, max_size=8),
)
def test_compiled_code_finds_the_same(
    chunk: tuple[bytes, str, int, int, list[bytes], list[int] | None],
    flips: list[tuple[int, int]],
    wanted: set[int],
) -> None:
    stored, kind, form, row_count, values, codes = chunk
    damaged = bytearray(stored)
    for place, bits in flips:
        damaged[place % len(stored)] ^= bits
    arrow = pa.int32() if kind == "INT32" else pa.binary()
    rows = np.array(sorted(wanted & set(range(row_count))), dtype=np.int64)
    outcomes = []
    for are_used in (False, True):
        with walking(are_used):
            outcome: list[Any] = [None, None, None]
            try:
                headers = headers_in(memoryview(bytes(damaged)), row_count)
                pages = StoredPages(form // 2, memoryview(bytes(damaged)), headers)
                coded = CodedChunk(pages, arrow, bool(form % 2), row_count)
                outcome[0] = headers.tolist()
                counted = coded.counts()
                outcome[1] = None if counted is None else (counted[0].tolist(), counted[1])
                found = coded.rows_of(np.arange(coded.values_count) % 3 == 0)
                outcome[2] = None if found is None else [part.tolist() for part in found]
            except (IndexError, KeyError, ValueError):
                outcomes.append(outcome)
                continue
            starts = tuple(
                zip((np.cumsum(headers[1:, 1]) - headers[1:, 1]).tolist(), headers[1:, 1].tolist(), strict=True)
            )
            starts = tuple(pair for pair in starts if pair[1])
            if len(rows) and len(starts) == len(headers) - 1:
                cut = only(KeptPages(pages, starts, row_count), _Leaf(kind, form % 2), rows)
                outcome.append(
                    None if cut is None or cut.dictionary else [_plain_of(page, form % 2) for page in cut.data]
                )
            outcomes.append(outcome)
    plain, compiled = outcomes
    assert plain[:3] == compiled[:3]
    if plain[3:] not in ([], [None]) and compiled[3:] != [None]:
        assert b"".join(plain[3]) == b"".join(compiled[3])
    if not flips and codes is not None and row_count:
        assert compiled[1] == (np.bincount(codes, minlength=len(values)).tolist(), 0)
        assert compiled[2] == [[i for i, c in enumerate(codes) if c % 3 == 0], [c for c in codes if c % 3 == 0]]
        if compiled[3:]:
            assert b"".join(compiled[3]) == b"".join(values[codes[row]] for row in rows.tolist())


def _plain_of(page: bytes | memoryview, level: int) -> bytes:
    body = bytes(page)[header_at(memoryview(page), 0).begin :]
    return body[4 + int.from_bytes(body[:4], "little") :] if level else body
