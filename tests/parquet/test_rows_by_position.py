"""Rows that an index names by their positions in a file: read by page where that can be, and never another row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import predicate_strategies as base
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from hypothesis import given
from hypothesis import strategies as st
from kernels_in_use import kernels
from lake_strategies import data_schemas
from skipstone import col
from skipstone.engine.parquet import kernels as compiled
from skipstone.engine.parquet import pages
from skipstone.engine.parquet.packed_footer import packed_footer, unpacked_footer
from skipstone.engine.parquet.page_headers import pages_of
from skipstone.engine.parquet.page_rows import only
from skipstone.engine.parquet.pages import flat_columns, rows_by_page
from skipstone.engine.scan.fine import row_groups_of
from skipstone.engine.scan.rows import count_matches, read_matches
from wide_rows import GROUP_ROWS, ROWS, at_positions, same, wide_table


@pytest.fixture(scope="module", params=["plain", "v2", "small pages", "no Arrow schema"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ss.Table, pa.Table]:
    options = {
        "plain": {},
        "v2": {"data_page_version": "2.0", "compression": "zstd", "use_dictionary": False},
        "small pages": {"data_page_size": 2000, "write_batch_size": 100, "dictionary_pagesize_limit": 5000},
        "no Arrow schema": {"store_schema": False, "write_page_index": True, "compression": "none"},
    }[request.param]
    root = tmp_path_factory.mktemp("lake")
    rows = wide_table()
    pq.write_table(rows, root / "a.parquet", row_group_size=GROUP_ROWS, **options)
    return ss.create(root), rows


@pytest.mark.some_cases(4)
@pytest.mark.parametrize(
    "positions",
    [[0], [ROWS - 1], [11_999, 12_000], [5, 20_000, 29_999], list(range(0, ROWS, 700)), list(range(100, 3000))],
    ids=["first", "last", "seam", "each group", "many groups", "many"],
)
def test_exactly_the_named_rows_are_read(lake: tuple[ss.Table, pa.Table], positions: list[int]) -> None:
    table, rows = lake
    wanted = np.array(positions, dtype=np.int64)
    for columns in (None, ["text", "price"], ["in", "n"], ["flag"]):
        plan = table.scan(columns=columns)
        got = at_positions(plan, {"a.parquet": wanted}, exact=True)
        expected = rows.take(pa.array(wanted))
        assert got.schema == plan.to_reader().schema
        same(got, expected if columns is None else expected.select(columns))


def test_candidates_are_tested_by_the_whole_predicate(lake: tuple[ss.Table, pa.Table]) -> None:
    table, rows = lake
    for step in (7, 1501):
        wanted = np.arange(0, ROWS, step, dtype=np.int64)
        where = col("few") == "kind 2"
        mask = np.array([v == "kind 2" for v in rows.column("few").to_pylist()])
        expected = rows.take(pa.array(wanted[mask[wanted]]))
        for columns in (None, ["key"], ["few", "key"]):
            got = at_positions(table.scan(where, columns=columns), {"a.parquet": wanted})
            same(got, expected if columns is None else expected.select(columns))


def test_row_groups_without_a_named_row_are_left_out(lake: tuple[ss.Table, pa.Table]) -> None:
    table, _ = lake
    plan = table.scan().planning
    for positions, kept in (([], []), ([3], [0]), ([0, 29_999], [0, 2]), ([12_000, 23_999], [1])):
        task = replace(plan.tasks[0], rows=np.array(positions, dtype=np.int64))
        (groups,) = row_groups_of([task], plan.context, plan.index_storage)
        assert groups.kept == kept and groups.total == 3
        (unknown,) = row_groups_of([replace(task, fine=())], plan.context, plan.index_storage)
        assert unknown.kept == (None if positions else [])


def test_rows_that_were_deleted_stay_deleted(lake: tuple[ss.Table, pa.Table]) -> None:
    table, _ = lake
    plan = table.scan(columns=["n"])
    planning = plan.planning
    planning.__dict__["context"] = replace(planning.context, deletes={"a.parquet": np.array([3, 12_001, 29_999])})
    planning.__dict__["tasks"] = [replace(task, is_exact=False, may_prune=False) for task in planning.tasks]
    for exact in (False, True):
        got = at_positions(plan, {"a.parquet": np.array([2, 3, 12_000, 12_001])}, exact)
        assert sorted(got.column("n").to_pylist()) == [2, 12_000]


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("positions", [[ROWS], [0, ROWS + 5], [-1], [2**40]])
def test_a_position_beyond_the_file_is_damage(lake: tuple[ss.Table, pa.Table], positions: list[int]) -> None:
    table, _ = lake
    plan = table.scan(col("n") == 3, columns=["n"]).planning
    known = replace(plan.tasks[0], rows=np.array(positions, dtype=np.int64), rows_exact=True)
    for task in (known, replace(known, fine=())):
        with pytest.raises(ss.CorruptionError, match=r"a\.parquet: an index names row"):
            (groups,) = row_groups_of([task], plan.context, plan.index_storage)
            list(read_matches(task, groups, plan.context, plan.storage))
        with pytest.raises(ss.CorruptionError, match="create it anew"):
            count_matches(task, row_groups_of([plan.tasks[0]], plan.context, plan.index_storage)[0], plan.context, None)


def test_another_file_than_planned_gives_no_rows(tmp_path: Path) -> None:
    pq.write_table(wide_table(), tmp_path / "a.parquet", row_group_size=GROUP_ROWS)
    plan = ss.create(tmp_path).scan(columns=["n"]).planning
    task = replace(plan.tasks[0], rows=np.array([29_999]), rows_exact=True)
    groups = row_groups_of([task], plan.context, plan.index_storage)[0]
    pq.write_table(wide_table(10), tmp_path / "a.parquet")
    with pytest.raises(ss.NotReadableError, match="overwritten"):
        list(read_matches(task, groups, plan.context, plan.storage))


def test_few_rows_cost_few_bytes(tmp_path: Path) -> None:
    rows = pa.table({"key": [os.urandom(20).hex() for _ in range(200_000)]})
    pq.write_table(rows, tmp_path / "a.parquet", use_dictionary=False, data_page_size=100_000)
    table = ss.create(tmp_path)
    plan = table.scan()
    before = table.handle.storage.reading()
    got = at_positions(plan, {"a.parquet": np.array([100_000])}, exact=True)
    assert got.column("key").to_pylist() == [rows.column("key")[100_000].as_py()]
    assert table.handle.storage.reading()[1] - before[1] < os.path.getsize(tmp_path / "a.parquet") / 2


# -- pages ------------------------------------------------------------------------------------------------------------


CODECS = ["none", "snappy", "zstd", "gzip", "brotli", "lz4"]


@st.composite
def parquet_files(draw: st.DrawFn) -> tuple[pa.Table, bytes]:
    """A drawn table, many times over, as a file of small pages in any of Parquet's forms."""
    rows = draw(base.tables(draw(data_schemas()), max_rows=24))
    rows = pa.concat_tables([rows] * draw(st.integers(1, 5)))
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        row_group_size=draw(st.integers(1, 60)),
        data_page_size=draw(st.sampled_from([1, 50, 1 << 20])),
        write_batch_size=draw(st.integers(1, 9)),
        data_page_version=draw(st.sampled_from(["1.0", "2.0"])),
        compression={name: draw(st.sampled_from(CODECS)) for name in rows.column_names},
        use_dictionary=draw(st.booleans()),
        dictionary_pagesize_limit=draw(st.sampled_from([1, 40, 1 << 20])),
        write_page_index=draw(st.booleans()),
        write_page_checksum=draw(st.booleans()),
        store_schema=draw(st.booleans()),
        store_decimal_as_integer=draw(st.booleans()),
    )
    return rows, sink.getvalue().to_pybytes()


@contextmanager
def cutting(how: str) -> Iterator[None]:
    """Pages are cut to the wanted rows however few are decoded for them, or not at all."""
    before, pages._CUT_ROWS_MIN = pages._CUT_ROWS_MIN, 1 << 62 if how == "as they are" else 0
    try:
        with kernels(are_used=how == "cut by compiled code"):
            yield
    finally:
        pages._CUT_ROWS_MIN = before


WAYS = ["as they are", "cut", "cut by compiled code"]


@given(file_of=parquet_files(), data=st.data(), how=st.sampled_from(WAYS))
def test_rows_by_page_are_those_of_the_file(file_of: tuple[pa.Table, bytes], data: st.DataObject, how: str) -> None:
    _, stored = file_of
    file = pq.ParquetFile(pa.BufferReader(stored))
    groups = []
    for group in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        wanted = data.draw(st.sets(st.integers(0, count - 1), max_size=4)) if count else set()
        if wanted:
            groups.append((group, np.array(sorted(wanted))))
    codecs = _codecs(file)
    columns = [name for name in flat_columns(file, file.schema_arrow.names) if codecs[name] != "LZ4"]
    if not groups or not columns:
        return

    def read_at(offset: int, length: int) -> bytes:
        return stored[offset : offset + length]

    with cutting(how):
        found = rows_by_page(file.metadata, file.schema_arrow, read_at, groups, columns)
    for name in columns:
        column = pa.concat_tables([file.read_row_group(g, [name]).take(pa.array(at)) for g, at in groups]).column(0)
        plain = found[name].cast(column.type) if found[name].type != column.type else found[name]
        assert repr(base.rows_of(pa.table({name: plain}))) == repr(base.rows_of(pa.table({name: column})))


CUT_ROWS = 30_000
CUT = pa.table({
    "i": np.arange(CUT_ROWS) * 7,
    "low": np.arange(CUT_ROWS) // 5_000,
    "f": np.arange(CUT_ROWS) / 3,
    "small": pa.array(np.arange(CUT_ROWS) % 7, pa.int32()),
    "d": pa.array([Decimal(i % 900) for i in range(CUT_ROWS)], pa.decimal128(12, 2)),
    "b": pa.array([b"%05d" % i for i in range(CUT_ROWS)], pa.binary(5)),
    "of one length": [f"{i:08}" for i in range(CUT_ROWS)],
    "few": [f"kind {i * i % 13}" for i in range(CUT_ROWS)],
    "lengths": ["x" * (i % 9) for i in range(CUT_ROWS)],
    "flag": [i % 3 == 0 for i in range(CUT_ROWS)],
    "nulls": [None if i % 11 == 0 else i for i in range(CUT_ROWS)],
})  # fmt: skip


@pytest.mark.some_cases(6)
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "brotli"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("has_dictionaries", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_pages_are_cut_to_the_wanted_rows(codec: str, version: str, has_dictionaries: bool, how: str) -> None:
    sink = pa.BufferOutputStream()
    options = {"data_page_version": version, "compression": codec, "use_dictionary": has_dictionaries}
    pq.write_table(CUT, sink, row_group_size=20_000, data_page_size=30_000, **options)
    stored = sink.getvalue().to_pybytes()
    file = pq.ParquetFile(pa.BufferReader(stored))
    groups = [(0, np.array([0, 1, 9_000, 19_999])), (1, np.array([7, 9_999]))]

    def read_at(offset: int, length: int) -> bytes:
        return stored[offset : offset + length]

    with cutting(how):
        found = rows_by_page(file.metadata, file.schema_arrow, read_at, groups, CUT.column_names)
        cut = set()
        for i, name in enumerate(CUT.column_names):
            chunks = [(pages_of(file.metadata.row_group(g).column(i), read_at, rows), rows) for g, rows in groups]
            if all(only(chunk, file.schema.column(i), rows) is not None for chunk, rows in chunks):
                cut.add(name)
    expected = CUT.take(pa.array(np.concatenate([rows + 20_000 * group for group, rows in groups])))
    for name in CUT.column_names:
        assert found[name].cast(CUT.schema.field(name).type).to_pylist() == expected.column(name).to_pylist(), name
    assert {"flag", "nulls"}.isdisjoint(cut)
    assert {"i", "low", "f", "small", "d", "b"} <= cut
    assert ("of one length" in cut) or has_dictionaries
    assert ({"few", "lengths"} <= cut) == (has_dictionaries or how == "cut by compiled code")


@given(
    pieces=st.lists(st.one_of(st.binary(max_size=70), st.just(b"note 12345678"), st.just(b"\0" * 40)), max_size=60),
    flips=st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 255)), max_size=2),
    targets=st.lists(st.integers(0, 4_000), max_size=4),
)
def test_snappy_is_decompressed_as_far_as_it_is_needed(
    pieces: list[bytes], flips: list[tuple[int, int]], targets: list[int]
) -> None:
    plain = b"".join(pieces)
    codec = pa.Codec("snappy")
    stored = bytearray(codec.compress(plain, asbytes=True))
    for place, bits in flips:
        stored[place % len(stored)] ^= bits
    out = np.full(len(plain) + compiled.ROOM_BYTES, 99, dtype=np.uint8)
    progress = np.zeros(2, dtype=np.int64)
    is_snappy = True
    for target in [*sorted(targets), len(plain)]:
        is_snappy = is_snappy and compiled.unsnap(np.frombuffer(stored, dtype=np.uint8), out, progress, target)
        done = int(progress[1])
        assert not is_snappy or min(target, len(plain)) <= done <= len(plain)
        if not flips:
            assert is_snappy and out[:done].tobytes() == plain[:done]
    try:
        expected = codec.decompress(bytes(stored), decompressed_size=len(plain), asbytes=True)
    except (pa.ArrowException, OSError):
        return  # bytes behind the last that is needed are not looked at
    if is_snappy and int.from_bytes(stored[:1], "little") == len(plain) % 128 | (128 if len(plain) > 127 else 0):
        assert out[: len(plain)].tobytes() == expected


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("damaged", ["dictionary", "data"])
@pytest.mark.parametrize("how", WAYS[1:])
def test_a_page_that_fails_its_checksum_gives_no_value(codec: str, version: str, damaged: str, how: str) -> None:
    sink = pa.BufferOutputStream()
    rows = CUT.select(["few", "small", "of one length"])
    options = {"data_page_version": version, "compression": codec, "write_page_checksum": True}
    pq.write_table(rows, sink, dictionary_pagesize_limit=1 << 30, **options)
    stored = bytearray(sink.getvalue())
    file = pq.ParquetFile(pa.BufferReader(bytes(stored)))
    for i, name in enumerate(rows.column_names):
        chunk = file.metadata.row_group(0).column(i)
        end = (
            chunk.data_page_offset
            if damaged == "dictionary"
            else chunk.dictionary_page_offset + chunk.total_compressed_size
        )
        stored[end - 2] ^= 4

        def read_at(offset: int, length: int) -> bytes:
            return bytes(stored[offset : offset + length])

        with cutting(how), pytest.raises(ss.CorruptionError, match="checksum"):
            rows_by_page(file.metadata, file.schema_arrow, read_at, [(0, np.array([3, len(rows) - 1]))], [name])


@given(parquet_files(), st.data())
def test_a_packed_footer_reads_as_the_file_s_own(file_of: tuple[pa.Table, bytes], data: st.DataObject) -> None:
    _, stored = file_of
    own = pq.ParquetFile(pa.BufferReader(stored))
    packed = packed_footer(own.metadata)
    assert packed is not None and len(packed) < own.metadata.serialized_size
    metadata = unpacked_footer(packed, "a.parquet", len(stored))
    by_packed = pq.ParquetFile(pa.BufferReader(stored), metadata=metadata)
    assert by_packed.schema_arrow.equals(own.schema_arrow)
    assert by_packed.schema.equals(own.schema)
    for group in range(own.metadata.num_row_groups):
        expected, rows = own.read_row_group(group), by_packed.read_row_group(group)
        assert repr(base.rows_of(rows)) == repr(base.rows_of(expected))
    with pytest.raises(ss.CorruptionError, match=r"a\.parquet"):
        unpacked_footer(packed[: data.draw(st.integers(0, len(packed) - 1))], "a.parquet", len(stored))
    if own.metadata.num_rows:
        with pytest.raises(ss.CorruptionError, match=r"a\.parquet.*in a file of 4"):
            unpacked_footer(packed, "a.parquet", 4)


def _codecs(file: pq.ParquetFile) -> dict[str, str]:
    row_group = file.metadata.row_group(0)
    chunks = (row_group.column(i) for i in range(row_group.num_columns))
    return {chunk.path_in_schema: chunk.compression for chunk in chunks}


@given(st.data())
def test_damaged_pages_end_in_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("damaged")
    at = np.arange(10_000)
    rows = pa.table({"n": at, "s": [f"{i:020}" for i in range(10_000)]})
    pq.write_table(rows, root / "a.parquet", data_page_size=4000, write_page_checksum=True)
    plan = ss.create(root).scan()
    stored = bytearray((root / "a.parquet").read_bytes())
    times = os.stat(root / "a.parquet")
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(4, len(stored) - 3000))] ^= data.draw(st.integers(1, 255))
    (root / "a.parquet").write_bytes(stored)
    os.utime(root / "a.parquet", ns=(times.st_atime_ns, times.st_mtime_ns))
    wanted = np.array(sorted(data.draw(st.sets(st.integers(0, 9_999), min_size=1, max_size=3))))
    try:
        got = at_positions(plan, {"a.parquet": wanted}, exact=True)
    except ss.SkipstoneError:
        return
    assert got.num_rows == len(wanted)
