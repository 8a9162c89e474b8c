"""Parquet files with wrong footers, page headers or filters: an error names the file, the file is quarantined, or the
rows are those that pyarrow reads. The process never ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hostile_footers as hostile
import pytest
import skipstone as ss
from example_counts import examples
from hostile_footers import BINARY, I64, LIST, STRUCT, Value
from library_versions import cases
from loaded_modules import run_code

PROGRAM = "import hostile_program, sys; hostile_program.main(*map(int, sys.argv[1:]))"
AT_ONCE = 50
FOUND = (2762000154,)  # a width of values of which no version can keep the schema


@pytest.mark.parametrize("first", range(0, examples(3), AT_ONCE))
def test_hostile_files_are_refused_quarantined_or_read_right(first: int) -> None:
    count, found = min(AT_ONCE, examples(3) - first), FOUND if not first else ()
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


def _short_bound(footer: Value) -> None:
    _first_chunk(footer).field(3).field(12).field(6).value = b"\1\2"


def _long_histogram(footer: Value) -> None:
    _first_chunk(footer).field(3).field(16).field(3).value += [Value(I64, 1)] * 3


def _rows(footer: Value) -> None:
    footer.field(3).value = footer.field(4).value[0].field(3).value = 1 << 50


def _encrypted_column(footer: Value) -> None:
    key = Value(STRUCT, [(1, Value(LIST, [Value(BINARY, b"id")], of=BINARY)), (2, Value(BINARY, b"k"))])
    _first_chunk(footer).value.append((8, Value(STRUCT, [(2, key)])))


LIES: dict[str, Callable[[Value], None]] = {
    "rows": _rows,
    "negative values": _chunk_field(5, -1),
    "size beyond the file": _chunk_field(7, 1 << 40),
    "negative size": _chunk_field(7, -5),
    "pages beyond the file": _chunk_field(9, 1 << 50),
    "more chunks than leaves": lambda footer: footer.field(4).value[0].field(1).value.append(_first_chunk(footer)),
    "a histogram of other levels": _long_histogram,
    "an encrypted column": _encrypted_column,
    "a schema of depth 10,000": lambda footer: hostile.deepen(footer, 10_000),
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
    assert [finding.path for finding in table.verify()] == ["b.parquet"]
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


@pytest.mark.parametrize("has_orders", [True, False])
def test_a_file_whose_footer_counts_values_as_null_is_not_read_by_duckdb(tmp_path: Path, has_orders: bool) -> None:
    """As polars wrote them: a null was counted once per page. DuckDB then reads a column as null."""

    def count_all_as_null(footer: Value) -> None:
        for group in footer.field(4).value:
            for chunk in group.field(1).value[:3]:
                values = chunk.field(3).field(5).value
                chunk.field(3).field(12).put(3, Value(I64, values))
        footer.put(7, footer.field(7) if has_orders else None)

    (tmp_path / "a.parquet").write_bytes(hostile.base_files()[0])
    _with_lie(tmp_path / "b.parquet", count_all_as_null)
    table = ss.create(tmp_path, partitioning=None)
    for reader in ("auto", "pyarrow", "duckdb"):
        found = table.scan("s >= 'k0003'", columns=["id", "s", "f"], reader=reader).to_table()
        assert found.num_rows == 114
        assert [found[name].null_count for name in found.column_names] == [0, 0, 22]
        assert (table.scan("s IS NULL").count(), table.scan("f > 1").count(by="id").num_rows) == (0, 44)
    assert table.sql("SELECT count(id), count(s), count(f) FROM self").fetchall() == [(120, 120, 96)]
    assert not table.schema.metadata
    plan = table.scan("id >= 0", columns=["id"], reader="duckdb")
    plan.to_table()
    assert "contradict themselves" in plan.explain()


@pytest.mark.parametrize("length", [0, 1 << 20, (1 << 32) - 1])
def test_a_footer_of_an_impossible_length_is_quarantined(tmp_path: Path, length: int) -> None:
    (tmp_path / "a.parquet").write_bytes(hostile.base_files()[0])
    data = hostile.base_files()[0]
    (tmp_path / "b.parquet").write_bytes(data[:-8] + length.to_bytes(4, "little") + b"PAR1")
    table = ss.create(tmp_path, partitioning=None)
    assert table.scan().count() == 60
    assert [p["path"] for p in table.handle.instant.quarantined] == ["b.parquet"]
