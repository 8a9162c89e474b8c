"""Column chunks of dictionary codes: counts and rows are those of the values that pyarrow reads, by compiled code and
without it, and damage is an error or left to pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime

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
from skipstone.engine.parquet.coded_chunks import CodedChunk, coded_chunk, count_codes, rows_of_codes
from skipstone.engine.parquet.thrift import varint

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


@given(
    width=st.integers(0, 25),
    runs=st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=12),
    seed=st.integers(0, 999),
    flips=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=2),
    count=st.integers(0, 600),
    values_count=st.integers(1, 300),
)
def test_codes_are_counted_the_same(
    width: int, runs: list[tuple[bool, int]], seed: int, flips: list[tuple[int, int]], count: int, values_count: int
) -> None:
    random = np.random.default_rng(seed)
    data, codes = bytearray(), []
    for is_packed, size in runs:
        drawn = random.integers(0, min(1 << width, values_count), 8 * size if is_packed else 1).tolist()
        if is_packed:
            number = sum(code << (width * i) for i, code in enumerate(drawn))
            data += varint(size << 1 | 1) + number.to_bytes(size * width, "little")
            codes += drawn
        else:
            data += varint(size << 1) + drawn[0].to_bytes((width + 7) // 8, "little")
            codes += drawn * size
    is_whole = not flips and all(size for _, size in runs) and width <= 24
    for place, bits in flips if data else ():
        data[place % len(data)] ^= bits
    raw, wanted = np.frombuffer(bytes(data), dtype=np.uint8), random.integers(0, 2, values_count).astype(bool)
    outcomes = []
    for are_used in (False, True):
        with walking(are_used):
            counts = np.zeros(values_count, dtype=np.int64)
            try:
                is_counted = count_codes(raw, width, count, counts)
                rows = rows_of_codes(raw, width, count, wanted)
            except (IndexError, ValueError):
                is_counted, rows = False, None
            counted = counts.tolist() if is_counted else None
            outcomes.append((counted, None if rows is None else [part.tolist() for part in rows]))
    assert outcomes[0] == outcomes[1]
    if is_whole:
        counted, found = outcomes[0]
        if count > len(codes):
            assert counted is None and found is None
        else:
            assert counted == np.bincount(codes[:count], minlength=values_count).tolist()
            places = [i for i, code in enumerate(codes[:count]) if wanted[code]]
            assert found == [places, [codes[i] for i in places]]
