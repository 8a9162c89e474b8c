"""Parquet files whose footers, page headers or filters lie: an error that names the file, the file quarantined, or the
rows that pyarrow reads of it. Nothing else comes out, and the process lives.

Some by default; with SKIPSTONE_TEST=all 1,500.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_footers as hostile
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hostile_footers import BINARY, I64, LIST, STRUCT, Value
from library_versions import cases, parquet_options
from loaded_modules import run_code
from skipstone.engine.parquet.footer_bytes import footer_bytes

PROGRAM = "import hostile_program, sys; hostile_program.main(*map(int, sys.argv[1:]))"
AT_ONCE = 50


FOUND = (2762000154,)  # a width of values of which no version can keep the schema


@pytest.mark.parametrize("first", range(0, examples(3, 1500), AT_ONCE))
def test_hostile_files_are_refused_quarantined_or_read_right(first: int) -> None:
    count, found = min(AT_ONCE, examples(3, 1500) - first), FOUND if not first else ()
    run = run_code(PROGRAM, first, count, *found, timeout_s=900)
    lines = run.stdout.splitlines()
    assert run.returncode == 0, (lines[-1:], run.stderr[-500:])
    assert [line for line in lines if not line.startswith("#")] == []
    assert len(lines) == count + len(found)


# -- one lie each -----------------------------------------------------------------------------------------------------


def _first_chunk(footer: Value) -> Value:
    return footer.field(4).value[0].field(1).value[0]


def _chunk_field(number: int, value: int) -> Callable[[Value], None]:
    def change(footer: Value) -> None:
        _first_chunk(footer).field(3).field(number).value = value

    return change


def _more_chunks(footer: Value) -> None:
    chunks = footer.field(4).value[0].field(1).value
    chunks.append(chunks[0])


def _short_bound(footer: Value) -> None:
    _first_chunk(footer).field(3).field(12).field(6).value = b"\1\2"


def _long_histogram(footer: Value) -> None:
    _first_chunk(footer).field(3).field(16).field(3).value += [Value(I64, 1)] * 3


def _rows(footer: Value) -> None:
    footer.field(3).value = footer.field(4).value[0].field(3).value = 1 << 50


def _encrypted_column(footer: Value) -> None:
    key = Value(STRUCT, [(1, Value(LIST, [Value(BINARY, b"id")], of=BINARY)), (2, Value(BINARY, b"k"))])
    _first_chunk(footer).value.append((8, Value(STRUCT, [(2, key)])))


def _deep_schema(footer: Value) -> None:
    group = Value(STRUCT, [(3, Value(5, 1)), (4, Value(BINARY, b"g")), (5, Value(5, 1))])
    footer.field(2).value[1:1] = [group] * 10_000


LIES: dict[str, Callable[[Value], None]] = {
    "rows": _rows,
    "negative values": _chunk_field(5, -1),
    "size beyond the file": _chunk_field(7, 1 << 40),
    "negative size": _chunk_field(7, -5),
    "pages beyond the file": _chunk_field(9, 1 << 50),
    "more chunks than leaves": _more_chunks,
    "a histogram of other levels": _long_histogram,
    "an encrypted column": _encrypted_column,
    "a schema of depth 10,000": _deep_schema,
}


def _with_lie(path: Path, lie: Callable[[Value], None]) -> None:
    data = hostile.base_files()[0]
    begin, footer = hostile.footer_of(data)
    lie(footer)
    path.write_bytes(hostile.with_footer(data, begin, hostile.dump(footer)))


@pytest.mark.some_cases(6)
@pytest.mark.parametrize("lie", cases(LIES, ["a histogram of other levels"], "pyarrow", 26))
def test_a_footer_that_contradicts_itself_is_quarantined(tmp_path: Path, lie: str) -> None:
    (tmp_path / "a.parquet").write_bytes(hostile.base_files()[0])
    _with_lie(tmp_path / "b.parquet", LIES[lie])
    table = ss.create(tmp_path, partitioning=None)
    assert table.files()["path"].to_pylist() == ["a.parquet"]
    assert table.scan("id >= 0").count() == 60
    (finding,) = [f for f in table.verify() if "b.parquet" in str(f)]
    assert finding is not None
    with pytest.raises(ss.CorruptionError, match=r"b\.parquet"):
        ss.create(tmp_path, partitioning=None, files=["b.parquet"], index_path=tmp_path.parent / "other")


def test_a_bound_shorter_than_its_type_is_no_bound(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(hostile.base_files()[0])
    _with_lie(tmp_path / "b.parquet", _short_bound)
    table = ss.create(tmp_path, partitioning=None)
    assert table.scan("s = 'k0003'", columns=["f", "s"]).to_table().num_rows == 2
    assert table.scan("id = 3").files()["path"].to_pylist() == ["a.parquet", "b.parquet"]
    with pytest.raises(ss.CorruptionError, match=r"b\.parquet"):  # pyarrow refuses the column
        table.scan("id = 3").to_table()


@pytest.mark.parametrize("length", [0, 1 << 20, (1 << 32) - 1])
def test_a_footer_of_an_impossible_length_is_quarantined(tmp_path: Path, length: int) -> None:
    (tmp_path / "a.parquet").write_bytes(hostile.base_files()[0])
    data = hostile.base_files()[0]
    (tmp_path / "b.parquet").write_bytes(data[:-8] + length.to_bytes(4, "little") + b"PAR1")
    table = ss.create(tmp_path, partitioning=None)
    assert table.scan().count() == 60
    assert [p["path"] for p in table.handle.instant.quarantined] == ["b.parquet"]


# -- whole footers ----------------------------------------------------------------------------------------------------


OPTIONS: list[dict[str, Any]] = [
    {},
    {"write_page_index": True, "row_group_size": 7},
    {"write_statistics": False},
    {"use_dictionary": False, "version": "1.0", "row_group_size": 20},
    {"bloom_filter_options": {"id": True}, "data_page_version": "2.0"},
    {"store_decimal_as_integer": True, "write_statistics": ["id", "d"]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_whole_footer_is_parsed_as_pyarrow_does(options: dict[str, Any]) -> None:
    sink = io.BytesIO()
    wide = pa.table({"long " + "x" * 90: ["y" * 500, "z" * 70, None], "none": pa.nulls(3, pa.int32())})
    for rows in (hostile.rows(), hostile.rows().slice(0, 0), wide):
        with pq.ParquetWriter(sink := io.BytesIO(), rows.schema, **_known(options, rows)) as writer:
            writer.write_table(rows, row_group_size=options.get("row_group_size"))
        metadata = pq.ParquetFile(sink).metadata
        footer = footer_bytes(metadata, size_bytes=len(sink.getvalue()))
        assert footer.created_by == metadata.created_by
        assert [group.row_count for group in footer.row_groups] == [
            metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)
        ]
        for number, chunks in enumerate(footer.chunks):
            for leaf, chunk in enumerate(chunks):
                theirs = metadata.row_group(number).column(leaf)
                stats = theirs.statistics
                assert chunk.value_count == theirs.num_values
                assert chunk.compressed_bytes == theirs.total_compressed_size
                assert chunk.uncompressed_bytes == theirs.total_uncompressed_size
                assert chunk.null_count == (stats.null_count if stats and stats.has_null_count else None)
                assert chunk.has_bounds == (stats is not None and stats.has_min_max)
                assert not chunk.has_bounds or chunk.bounds == (stats.min_raw, stats.max_raw)


def _known(options: dict[str, Any], rows: pa.Table) -> dict[str, Any]:
    """The options that ParquetWriter has, of columns that are there."""
    has_id = "id" in rows.column_names
    return {
        name: value
        for name, value in parquet_options(options).items()
        if name != "row_group_size" and (has_id or name not in ("bloom_filter_options", "write_statistics"))
    }


def test_the_greatest_of_strings_that_are_no_text_is_an_error_of_ours(tmp_path: Path) -> None:
    strings = pa.StringArray.from_buffers(2, pa.array([0, 1, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff\xfe"))
    pq.write_table(pa.table({"s": strings}), tmp_path / "a.parquet", write_statistics=False)
    table = ss.create(tmp_path, partitioning=None)
    assert table.scan().min("s") == "a"
    with pytest.raises(ss.CorruptionError, match="no string"):
        table.scan().max("s")
