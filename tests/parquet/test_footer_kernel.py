"""The compiled reader of footers accepts every whole footer, and reads what it accepts as its plain twin does."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hostile_footers import base_files, harmed, rows
from library_versions import parquet_options
from skipstone.base import lazy
from skipstone.engine.parquet import footer_bytes, footers, kernels_footer
from skipstone.engine.parquet.footer_bytes import FooterBytes, _fields_of, _Leaves, _leaves_of, parsed_footer
from skipstone.engine.parquet.footer_bytes import _read_by_kernel as read_by_kernel
from skipstone.engine.storage import open_storage
from skipstone.errors import SkipstoneError

AT_ONCE = 100


def _footer(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def _plain(footer: bytes, leaves: _Leaves, size_bytes: int | None) -> FooterBytes:
    return parsed_footer(_fields_of(footer), leaves, size_bytes)


def _file(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"write_page_index": True, "row_group_size": 7},
    {"write_statistics": False},
    {"use_dictionary": False, "version": "1.0", "row_group_size": 20},
    {"bloom_filter_options": {"id": True}, "data_page_version": "2.0"},
    {"store_decimal_as_integer": True, "write_statistics": ["id", "d"]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_whole_footer_is_accepted_and_read_as_pyarrow_does(options: dict[str, Any]) -> None:
    nested = pa.table({"l": [[1], [], None], "m": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int8()))})
    wide = pa.table({f"c{i}": [i, None] for i in range(200)})
    odd = pa.table({"none": pa.nulls(3, pa.int32()), "long " + "x" * 90: ["y" * 500, "", None]})
    for table in (rows(), rows().slice(0, 0), nested, wide, odd):
        data = _file(table, **_without_columns(options, table))
        metadata = pq.read_metadata(io.BytesIO(data))
        leaves = _leaves_of(metadata.schema)
        for size_bytes in (len(data), None):
            read = read_by_kernel(kernels_footer, _footer(data), leaves, size_bytes)
            assert read is not None and read == _plain(_footer(data), leaves, size_bytes)
        _check_as_pyarrow(read, metadata)


def _without_columns(options: dict[str, Any], table: pa.Table) -> dict[str, Any]:
    """The options, without those for columns if the table lacks these."""
    with_columns = () if "id" in table.column_names else ("bloom_filter_options", "write_statistics")
    return {name: value for name, value in parquet_options(options).items() if name not in with_columns}


def _check_as_pyarrow(footer: FooterBytes, metadata: pq.FileMetaData) -> None:
    assert footer.created_by == metadata.created_by
    row_counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert [group.row_count for group in footer.row_groups] == row_counts
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


@pytest.mark.parametrize("first", range(0, examples(100), AT_ONCE))
def test_what_the_kernel_accepts_its_twin_reads_alike(first: int) -> None:
    accepted, files = 0, base_files()
    for seed in range(first, first + AT_ONCE):
        rng = random.Random(seed)
        whole = rng.choice(files)
        leaves = _leaves_of(pq.read_metadata(io.BytesIO(whole)).schema)
        try:
            data = bytearray(_footer(harmed(whole, seed)[0]) or _footer(whole))
        except RecursionError:  # of the program that does the harm
            data = bytearray(_footer(whole))
        for _ in range(rng.choice([0, 0, 1, 3])):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        footer = bytes(data[: rng.choice([len(data), rng.randrange(len(data) + 1)])])
        size_bytes = rng.choice([len(whole), None])
        read = read_by_kernel(kernels_footer, footer, leaves, size_bytes)
        if read is not None:
            accepted += 1
            assert read == _plain(footer, leaves, size_bytes)
    assert 0 < accepted < AT_ONCE


def test_a_footer_of_other_leaves_is_refused() -> None:
    footers = [_footer(_file(pa.table({f"c{i}": [1] for i in range(width)}))) for width in (1, 2, 3)]
    leaves = [_leaves_of(pq.read_metadata(io.BytesIO(_file(pa.table({"a": ["x"], "b": [1]})))).schema)] * 3
    read = [read_by_kernel(kernels_footer, footer, kind, None) for footer, kind in zip(footers, leaves, strict=True)]
    assert read[0] is None and read[2] is None


def test_a_footer_that_only_pyarrow_refuses_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footer_bytes, "kernels_for", lambda *_: kernels_footer)
    whole = _file(pa.table({"a": [1, 2]}))
    footer = _footer(whole)
    assert footer[:3] == b"\x15\x04\x19"  # the version, which is required, and the list after it
    other = b"\x29" + footer[3:]
    damaged = whole[: -8 - len(footer)] + other + len(other).to_bytes(4, "little") + b"PAR1"
    for name, data in (("a", whole), ("b", damaged), ("c", whole)):
        (tmp_path / f"{name}.parquet").write_bytes(data)
    table = ss.create(tmp_path)
    assert table.files()["path"].to_pylist() == ["a.parquet", "c.parquet"]


@pytest.mark.parametrize("first", range(0, examples(60), 60))
def test_a_file_is_read_alike_with_and_without_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    storage, whole_files, files = open_storage(str(tmp_path)), 0, base_files()

    def read(name: str) -> footers.Footer | str:
        try:
            return footers.read_footer(storage, storage.stat(name))
        except SkipstoneError as error:
            return str(error)

    for seed in range(first, first + 60):
        whole = files[seed % len(files)]
        try:
            other = harmed(whole, seed)[0] if seed % 4 else whole
        except RecursionError:  # of the program that does the harm
            continue
        (tmp_path / "a.parquet").write_bytes(whole)
        (tmp_path / "b.parquet").write_bytes(other)
        monkeypatch.setitem(lazy._loaded, "engine.parquet.kernels_footer", None)
        plain = read("b.parquet")
        monkeypatch.setitem(lazy._loaded, "engine.parquet.kernels_footer", kernels_footer)
        assert isinstance(read("a.parquet"), footers.Footer)  # b is read after a file of its schema
        assert read("b.parquet") == plain
        whole_files += isinstance(plain, footers.Footer)
    assert whole_files > 5
