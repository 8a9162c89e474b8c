"""The kinds of files of apache/parquet-testing, as far as pyarrow writes them: attached, indexed, scanned and looked up
as pyarrow reads them, or refused by one of our errors."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
import skipstone as ss
from library_versions import has, parquet_options
from skipstone import col

COUNT = 40
NUMBERS = list(range(COUNT))


def _some(values: list) -> list:
    return [None if i % 7 == 3 else value for i, value in enumerate(values)]


COLUMNS: dict[str, pa.Array] = {
    "int8": pa.array(_some(NUMBERS), pa.int8()),
    "int32": pa.array(_some([i - 20 for i in NUMBERS]), pa.int32()),
    "int64": pa.array(_some([i * 10**12 for i in NUMBERS]), pa.int64()),
    "uint16": pa.array(_some([65535 - i for i in NUMBERS]), pa.uint16()),
    "uint64": pa.array(_some([2**64 - 1 - i for i in NUMBERS]), pa.uint64()),
    "half": pa.array(np.array([i - 20 for i in NUMBERS], dtype=np.float16)),
    "float": pa.array(_some([i / 8 for i in NUMBERS]), pa.float32()),
    "double": pa.array([float("nan") if i == 5 else i / 8 for i in NUMBERS], pa.float64()),
    "bool": pa.array(_some([i % 2 == 0 for i in NUMBERS]), pa.bool_()),
    "string": pa.array(_some([f"é{i:03d}" for i in NUMBERS])),
    "dictionary": pa.array([f"{i % 4}" for i in NUMBERS]).dictionary_encode(),
    "binary": pa.array(_some([bytes([i, 255]) for i in NUMBERS]), pa.binary()),
    "fixed": pa.array(_some([bytes([i, 128, 0]) for i in NUMBERS]), pa.binary(3)),
    "date": pa.array(_some([dt.date(1960, 1, 1) + dt.timedelta(days=i) for i in NUMBERS])),
    "time": pa.array([dt.time(i % 24, i) for i in NUMBERS], pa.time64("us")),
    "timestamp ms": pa.array(_some([dt.datetime(1969, 12, 31, 23, i) for i in NUMBERS]), pa.timestamp("ms")),
    "timestamp utc": pa.array(_some([dt.datetime(2020, 1, 1, 1, i) for i in NUMBERS]), pa.timestamp("us", tz="UTC")),
    "decimal 4": pa.array(_some([Decimal(i - 9) / 100 for i in NUMBERS]), pa.decimal128(4, 2)),
    "decimal 18": pa.array([Decimal(i) / 100 for i in NUMBERS], pa.decimal128(18, 2)),
    "decimal 38": pa.array(_some([Decimal(i - 20) * 10**20 for i in NUMBERS]), pa.decimal128(38, 2)),
    "decimal 76": pa.array([Decimal(i) for i in NUMBERS], pa.decimal256(76, 0)),
    "nothing": pa.nulls(COUNT, pa.int32()),
}
NESTED: dict[str, pa.Array] = {
    "list": pa.array([[i] * (i % 3) if i % 5 else None for i in NUMBERS], pa.list_(pa.int32())),
    "lists": pa.array([[[i], [], None] for i in NUMBERS], pa.list_(pa.list_(pa.int64()))),
    "map": pa.array([[("a", i), ("b", None)] for i in NUMBERS], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"x": i, "y": {"z": [str(i)]}} if i % 4 else None for i in NUMBERS]),
    "variant": pa.array([{"metadata": b"\1\0\0", "value": bytes([12, i])} for i in NUMBERS]),  # an unshredded one
}
ONLY_BY_PYARROW = ("half", "dictionary", "fixed", "decimal 76")
WHOLE = pa.table({"id": NUMBERS, **COLUMNS, **NESTED})

ENCODINGS = {
    "PLAIN": ["int32", "string", "double"],
    "RLE": ["bool"],
    "DELTA_BINARY_PACKED": ["int32", "int64", "date", "timestamp ms"],
    "DELTA_LENGTH_BYTE_ARRAY": ["string", "binary"],
    "DELTA_BYTE_ARRAY": ["string", "binary", "fixed"],
    "BYTE_STREAM_SPLIT": ["int32", "int64", "float", "double", "half", "fixed", "decimal 38"],
}
CODECS = [c for c in ("none", "snappy", "gzip", "brotli", "zstd", "lz4") if c == "none" or pa.Codec.is_available(c)]
OPTIONS: dict[str, dict[str, Any]] = {
    **{codec: {"compression": codec} for codec in CODECS},
    "v2 pages": {"data_page_version": "2.0", "data_page_size": 32},
    "no dictionaries": {"use_dictionary": False, "data_page_size": 64},
    "version 1.0": {"version": "1.0"},
    "INT96": {"use_deprecated_int96_timestamps": True},
    "decimals as integers": {"store_decimal_as_integer": True},
    "checksums and page index": {"write_page_checksum": True, "write_page_index": True},
    "no statistics": {"write_statistics": False},
    "other names in lists": {"use_compliant_nested_type": False},
    "dictionaries that end": {"dictionary_pagesize_limit": 64, "data_page_size": 64},
    "filters": {"bloom_filter_options": {"id": True, "string": True, "int64": True}},
    "no Arrow schema": {"store_schema": False},
}


def _write(path: Path, rows: pa.Table, **options: Any) -> pa.Table:
    """Writes a file in row groups of unlike sizes, and gives what pyarrow reads of it."""
    pq.write_table(rows, path, row_group_size=17, **parquet_options(options))
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()


def _checked(root: Path, expected: pa.Table) -> ss.Table:
    """The table of a folder, whose rows, counts and extremes are those of the rows that pyarrow reads."""
    table = ss.create(root, partitioning=None)
    assert repr(table.scan().to_table().to_pylist()) == repr(expected.to_pylist())
    by_duckdb = [name for name in expected.column_names if name not in ONLY_BY_PYARROW]
    plan = table.scan("id < 30", columns=by_duckdb, reader="duckdb")
    assert sorted(map(repr, plan.to_table().to_pylist())) == sorted(
        map(repr, expected.select(by_duckdb)[:30].to_pylist())
    )
    assert table.scan().count() == expected.num_rows
    for name in expected.column_names:
        _check_column(table, name, expected[name])
    return table


def _check_column(table: ss.Table, name: str, values: pa.ChunkedArray) -> None:
    if pa.types.is_nested(values.type):
        return
    given = [v for v in values.to_pylist() if v is not None]
    numbers = [v for v in given if v == v]
    plan = table.scan(~col(name).is_nan()) if len(numbers) < len(given) else table.scan()
    assert (plan.min(name), plan.max(name)) == (min(numbers, default=None), max(numbers, default=None)), name
    assert table.scan(col(name).is_null()).count() == values.null_count, name
    for value in {*numbers[:1], *numbers[-1:]}:
        assert table.scan(col(name) == value, columns=["id"]).count() == numbers.count(value), name


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("options", list(OPTIONS))
def test_files_of_all_codecs_and_page_versions_are_read_as_pyarrow_reads_them(tmp_path: Path, options: str) -> None:
    table = _checked(tmp_path, _write(tmp_path / "a.parquet", WHOLE, **OPTIONS[options]))
    plan = table.scan("id < 30", columns=["string"], reader="duckdb")
    assert plan.to_table().num_rows == 30 and (not has("duckdb", 2) or "1 file by DuckDB" in plan.explain())
    table.create_index("string", kind="bloom")
    table.create_index("id", kind="secondary")
    for number in (0, 16, 17, 39):
        assert table.scan(col("id") == number).to_table()["string"].to_pylist() == [WHOLE["string"][number].as_py()]
    assert table.scan("string = 'é004' AND id < 9", columns=["struct", "map"]).to_table().num_rows == 1


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_rows_of_every_encoding_are_looked_up_by_position(tmp_path: Path, encoding: str) -> None:
    rows = WHOLE.select(["id", *ENCODINGS[encoding]])
    encodings = dict.fromkeys(ENCODINGS[encoding], encoding)
    expected = _write(tmp_path / "a.parquet", rows, use_dictionary=False, column_encoding=encodings, data_page_size=32)
    table = _checked(tmp_path, expected)
    table.create_index("id", kind="secondary")
    found = table.scan(col("id").is_in([2, 18, 38])).to_table()
    assert repr(found.to_pylist()) == repr(expected.take([2, 18, 38]).to_pylist())


def test_files_without_rows_columns_or_with_empty_row_groups(tmp_path: Path) -> None:
    for name, rows in {"rows": WHOLE.slice(0, 0), "columns": pa.table({"": pa.nulls(7)}).select([])}.items():
        (tmp_path / name).mkdir()
        pq.write_table(rows, tmp_path / name / "a.parquet")
    table = ss.create(tmp_path / "rows", partitioning=None)
    assert table.scan().count() == table.scan().to_table().num_rows == 0
    with pytest.raises(ss.SchemaError, match="needs a column"):
        ss.create(tmp_path / "columns", partitioning=None)
    (tmp_path / "groups").mkdir()
    few = WHOLE.select(["id", "string"])
    with pq.ParquetWriter(tmp_path / "groups/a.parquet", few.schema) as writer:
        for part in (few.slice(0, 0), few.slice(0, 5), few.slice(5, 0), few.slice(5, 3)):
            writer.write_table(part)
    table = ss.create(tmp_path / "groups", partitioning=None)
    for kind in ("bloom", "secondary"):
        table.create_index("id", kind=kind)
    assert table.scan("id = 6").to_table()["string"].to_pylist() == ["é006"]
    assert (table.scan().min("id"), table.scan().max("id"), table.scan().count()) == (0, 7, 8)


# -- encryption -------------------------------------------------------------------------------------------------------


class _Kms(pe.KmsClient):
    """Gives keys as they are."""

    def __init__(self, _: Any):
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return key_bytes.hex().encode()

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return bytes.fromhex(wrapped_key.decode())


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_encrypted_files_are_quarantined_by_name(tmp_path: Path, plaintext_footer: bool) -> None:
    config = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["string"]}, plaintext_footer=plaintext_footer, double_wrapping=False
    )
    properties = pe.CryptoFactory(_Kms).file_encryption_properties(pe.KmsConnectionConfig(), config)
    few = WHOLE.select(["id", "string"])
    pq.write_table(few, tmp_path / "b.parquet", encryption_properties=properties)
    with pytest.raises(ss.CorruptionError, match=r"b\.parquet.*encrypted"):
        ss.create(tmp_path, partitioning=None)
    _write(tmp_path / "a.parquet", few)
    table = ss.create(tmp_path, partitioning=None)
    (file,) = table.handle.instant.quarantined
    assert file["path"] == "b.parquet"
    assert "encrypted" in file["reason"]
    assert table.scan("id >= 0").count() == COUNT
