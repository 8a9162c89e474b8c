"""Column chunks of columns without new values are copied: files are those that writing every value again makes."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.engine.parquet import chunk_copies

# A type, and some of its values.
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, 0, 7]),
    (pa.uint32(), [0, 1, 2**32 - 1]),
    (pa.uint64(), [0, 2**63, 2**64 - 1]),
    (pa.float32(), [-0.0, 0.0, 1.5, math.inf]),
    (pa.float64(), [-0.0, 1.0, math.nan]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "ab", "ü" * 90]),
    (pa.large_binary(), [b"", b"\xff" * 70, b"a"]),
    (pa.binary(3), [b"abc", b"\xff\x00\x01"]),
    (pa.decimal128(9, 2), [decimal.Decimal("-1.25"), decimal.Decimal("7.00")]),
    (pa.decimal128(30, 4), [decimal.Decimal("-1.2500"), decimal.Decimal("7.0000")]),
    (pa.date32(), [datetime.date(1900, 1, 1), datetime.date(2024, 2, 29)]),
    (pa.timestamp("ns", "UTC"), [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)]),
    (pa.timestamp("us"), [datetime.datetime(1, 1, 1), datetime.datetime(2024, 1, 1)]),
    (pa.duration("ms"), [datetime.timedelta(0), datetime.timedelta(days=3)]),
    (pa.dictionary(pa.int32(), pa.string()), ["x", "y"]),
    (pa.list_(pa.int64()), [[], [1, None], [3]]),
    (pa.struct([("p", pa.int32()), ("q", pa.list_(pa.string()))]), [{"p": 1, "q": ["a"]}, {"p": None, "q": None}]),
    (pa.map_(pa.string(), pa.int32()), [[], [("k", 1)]]),
]


@st.composite
def _lakes(draw: st.DrawFn) -> tuple[list[pa.Table], dict[str, Any]]:
    """Files of one schema, and the options that they are written with."""
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=5))
    count = draw(st.integers(1, 60))
    columns = {"id": pa.array(range(count), pa.int64()), "v": pa.array(range(count), pa.int64())}
    for number, (kind, values) in enumerate(kinds):
        nullable = [*values, None] if draw(st.booleans()) else values
        chosen = draw(st.lists(st.sampled_from(nullable), min_size=count, max_size=count))
        columns[f"c{number}"] = pa.array(chosen, pa.string() if pa.types.is_dictionary(kind) else kind).cast(kind)
    order = draw(st.permutations(list(columns)))
    rows = pa.table(columns).select(order)
    options = {
        "row_group_size": draw(st.integers(1, count)),
        "compression": draw(st.sampled_from(["none", "snappy", "zstd", "gzip"])),
        "use_dictionary": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "data_page_size": draw(st.sampled_from([16, 1 << 20])),
        "write_page_index": draw(st.booleans()),
        "write_statistics": draw(st.booleans()),
        "store_decimal_as_integer": draw(st.booleans()),
    }
    return [rows], options


def _changed(folder: Path, rows: pa.Table, options: dict[str, Any], change: Any) -> tuple[ss.Table, Path]:
    """(the table, its file) after a change of a lake of one file."""
    folder.mkdir()
    pq.write_table(rows, folder / "a.parquet", **options)
    table = ss.create(folder)
    table.create_index("id", kind="secondary")
    change(table)
    assert table.verify(deep=True) == []
    (path,) = table.files()["path"].to_pylist()
    return table, folder / path


def _layout(path: Path, *, with_bounds: bool) -> list[Any]:
    """What a reader sees of a file's footer."""
    metadata = pq.read_metadata(path)
    described: list[Any] = [metadata.schema.to_arrow_schema().to_string(), metadata.num_rows]
    described.append(str(metadata.schema).split("\n", 1)[1])  # after the address of the object
    described += [metadata.created_by, metadata.format_version, metadata.metadata]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        described.append(group.num_rows)
        for leaf in range(group.num_columns):
            chunk = group.column(leaf)
            described += [chunk.path_in_schema, chunk.num_values, chunk.compression]
            if with_bounds and chunk.is_stats_set and "." not in chunk.path_in_schema:
                statistics = chunk.statistics
                described.append(repr(statistics.has_min_max and (statistics.min, statistics.max)))
                described.append(statistics.null_count)
    return described


@settings(max_examples=examples(8, 300), deadline=None)
@given(_lakes(), st.data())
def test_a_file_with_copied_chunks_is_the_file_written_again(
    tmp_path_factory: pytest.TempPathFactory, lake: tuple[list[pa.Table], dict[str, Any]], data: st.DataObject
) -> None:
    (rows,), options = lake
    names = [name for name in rows.column_names if name != "id"]
    updated = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    ids = data.draw(st.lists(st.integers(0, rows.num_rows - 1), min_size=1, unique=True))
    source = rows.take([rows.num_rows - 1 - i for i in ids]).select(updated)
    source = source.append_column("id", pa.array(ids, pa.int64()))

    def change(table: ss.Table) -> None:
        done = table.upsert(source, "id", when_not_matched=None)
        assert done.rows_updated == len(ids)

    root = tmp_path_factory.mktemp("lakes")
    table, copied = _changed(root / "copied", rows, options, change)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_copies, "_WRITERS", re.compile("nobody"))
        other, written = _changed(root / "written", rows, options, change)
    expected = pq.read_table(written)
    for one in (pq.read_table(copied), table.scan().to_table(), other.scan().to_table()):
        assert repr(one.to_pylist()) == repr(expected.to_pylist())
        assert one.schema.equals(expected.schema, check_metadata=True)
    by_duckdb = [duckdb.sql(f"SELECT * FROM read_parquet('{path}')").fetchall() for path in (copied, written)]
    assert repr(by_duckdb[0]) == repr(by_duckdb[1])
    with_bounds = options["write_statistics"]
    assert _layout(copied, with_bounds=with_bounds) == _layout(written, with_bounds=with_bounds)


def test_columns_are_copied_as_the_table_names_them(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a", "b"], "x": [1, 2], "y": [30, 40], "z": [5, 6]})
    pq.write_table(rows, tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    table.alter(rename={"x": "y", "y": "x"})
    table.upsert(pa.table({"id": ["b"], "z": [7]}), "id")
    assert table.scan(columns=["id", "x", "y", "z"]).to_table().sort_by("id").to_pylist() == [
        {"id": "a", "x": 30, "y": 1, "z": 5},
        {"id": "b", "x": 40, "y": 2, "z": 7},
    ]
    (path,) = table.files()["path"].to_pylist()
    assert pq.read_table(tmp_path / path, columns=["x"])["x"].to_pylist() == [30, 40]
    table.alter(drop="x", add={"w": pa.scalar(9)})
    table.alter(add={"x": pa.int64()})
    table.update({"z": "z + 1"}, "id = 'a'")
    assert table.scan().to_table().select(["id", "x", "w", "z"]).sort_by("id").to_pylist() == [
        {"id": "a", "x": None, "w": 9, "z": 6},
        {"id": "b", "x": None, "w": 9, "z": 7},
    ]
    assert table.verify(deep=True) == []


def test_chunks_are_copied_byte_for_byte(tmp_path: Path) -> None:
    rows = pa.table({"id": [f"k{i}" for i in range(100)], "v": range(100), "text": [f"{i}" * 9 for i in range(100)]})
    options = {"row_group_size": 33, "compression": "zstd"}
    _, path = _changed(tmp_path / "t", rows, options, lambda table: table.update({"v": "-v"}, "id = 'k50'"))
    stored = [(tmp_path / "t" / "a.parquet"), path]
    metadata = [pq.read_metadata(one) for one in stored]
    for group in range(4):
        for leaf in (0, 2):
            chunks = []
            for one, footer in zip(stored, metadata, strict=True):
                start, length = chunk_copies.chunk_range(footer.row_group(group).column(leaf))
                chunks.append(one.read_bytes()[start : start + length])
            assert chunks[0] == chunks[1] != b""


def test_names_with_dots_are_not_mixed_up(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a", "b"], "s": [1, 2], "s.p": [3, 4]})
    table, path = _changed(
        tmp_path / "t", rows, {}, lambda table: table.upsert(pa.table({"id": ["b"], "s.p": [7]}), "id")
    )
    assert pq.read_table(path).to_pylist() == [{"id": "a", "s": 1, "s.p": 3}, {"id": "b", "s": 2, "s.p": 7}]
    assert table.scan().to_table().to_pylist() == pq.read_table(path).to_pylist()
