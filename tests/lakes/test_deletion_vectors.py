"""Deletion vectors of Delta tables: whole ones of every form give their rows, damaged ones an error that names the
table and the file, in little memory."""

from __future__ import annotations

import json
import resource
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import log_lakes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from library_versions import has
from log_lakes import bitmap_array
from pyroaring import BitMap
from skipstone.engine.lakes.deletion_vectors import DeletionVector, rows_of
from skipstone.engine.storage import open_storage

MAGIC, RUNS = 1681511377, 12347
UUID = bytes(range(16))
NAME = "deletion_vector_00010203-0405-0607-0809-0a0b0c0d0e0f.bin"


def put(lake: Path, kind: str, data: bytes, count: int) -> dict[str, Any]:
    """Store a vector's bits as its kind requires, and return its descriptor."""
    descriptor = {"storageType": kind, "sizeInBytes": len(data), "cardinality": count}
    if kind == "i":
        return {**descriptor, "pathOrInlineDv": log_lakes.inline(data)}
    before = b"\1" + b"another vector"
    file = lake / ("sub/" if kind == "u" else "") / NAME
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(before + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data)) + b"more")
    place = "sub" + log_lakes.inline(UUID) if kind == "u" else f"file://{file}"
    return {**descriptor, "pathOrInlineDv": place, "offset": len(before)}


def read(lake: Path, descriptor: dict[str, Any]) -> list[int]:
    return rows_of(open_storage(lake), {"x.parquet": DeletionVector.of(descriptor)})["x.parquet"].tolist()


# Few and many rows to a container, and rows of more than 32 bits.
SPANS = st.tuples(
    st.sampled_from([0, 65_530, 1 << 18, (1 << 32) - 3, 5 << 33]), st.integers(1, 9_000), st.integers(1, 40)
)


@settings(max_examples=examples(4), deadline=None)
@given(spans=st.lists(SPANS, max_size=4), are_runs=st.booleans(), kind=st.sampled_from(["i", "u", "p"]))
def test_whole_vectors_give_their_rows(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int, int]], are_runs: bool, kind: str
) -> None:
    rows = sorted({start + i * step for start, count, step in spans for i in range(count)})
    lake = tmp_path_factory.getbasetemp() / "whole-vectors"
    lake.mkdir(exist_ok=True)
    assert read(lake, put(lake, kind, bitmap_array(rows, are_runs), len(rows))) == rows


@settings(max_examples=examples(50), deadline=None)
@given(data=st.data(), are_runs=st.booleans())
def test_changed_bytes_give_an_error_or_as_many_rows_in_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, are_runs: bool
) -> None:
    rows = sorted(data.draw(st.sets(st.integers(0, 1 << 34), min_size=1, max_size=30)))
    whole = bytearray(bitmap_array(rows, are_runs))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    lake = tmp_path_factory.getbasetemp()
    descriptor = put(lake, "i", bytes(whole), len(rows))
    try:
        read_rows = read(lake, descriptor)
    except ss.CorruptionError as error:
        assert str(lake) in str(error) and "x.parquet" in str(error)
    else:
        assert len(read_rows) == len(rows) and read_rows == sorted(set(read_rows))


def _number(form: str, offset: int, value: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        struct.pack_into(form, changed, offset, value)
        return bytes(changed)

    return change


# Of the bitmap array of the rows 1 and 3: magic at 0, count at 4, key at 12, cookie at 16, containers at 20, key
# and rows - 1 of the first at 24 and 26, its offset at 28, its rows at 32.
BITS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another magic number": (_number("<I", 0, MAGIC - 1), "format is unknown"),
    "no bitmap": (_number("<Q", 4, 0), "0 rows instead of 2"),
    "two bitmaps": (_number("<Q", 4, 2), "is damaged"),
    "bitmaps without end": (_number("<Q", 4, 1 << 62), "is damaged"),
    "a key beyond 63 bits": (_number("<I", 12, 1 << 31), "not in order"),
    "no cookie": (_number("<I", 16, 7), "is damaged"),
    "a cookie of runs": (_number("<I", 16, RUNS), "is damaged"),
    "no container": (_number("<I", 20, 0), "is damaged"),
    "containers without end": (_number("<I", 20, (1 << 31) - 1), "is damaged"),
    "more rows": (_number("<H", 26, 4095), "is damaged"),
    "fewer rows": (_number("<H", 26, 0), "1 rows instead of 2"),
    "rows in no order": (_number("<H", 32, 9), "is damaged"),
    "rows twice": (_number("<H", 32, 3), "is damaged"),
    "cut short": (lambda data: data[:-1], "is damaged"),
    "nothing": (lambda data: b"", "format is unknown"),
}
DESCRIPTORS: dict[str, tuple[dict[str, Any], str]] = {
    "a cardinality of more": ({"cardinality": 3}, "2 rows instead of 3"),
    "a cardinality of fewer": ({"cardinality": 1}, "2 rows instead of 1"),
    "a size beyond its file": ({"sizeInBytes": 1 << 30}, "ends before it"),
    "a size of fewer": ({"sizeInBytes": 35}, "instead of 35"),
    "an offset of none": ({"offset": 0}, "bytes instead of"),
    "an offset beyond": ({"offset": 1 << 40}, "ends before it"),
    "another offset": ({"offset": 3}, "bytes instead of"),
    "an unknown kind": ({"storageType": "x"}, "storage type 'x' is unknown"),
    "a name of another length": ({"pathOrInlineDv": "abc"}, "does not name a file"),
    "a name in no base 85": ({"pathOrInlineDv": "é" * 20}, "is damaged"),
    "a name beyond 32 bits": ({"pathOrInlineDv": "#" * 20}, "is damaged"),
    "a folder beyond the table": ({"pathOrInlineDv": "../" + "0" * 20}, "does not name a file"),
    "bits in no base 85": ({"storageType": "i", "pathOrInlineDv": "é" * 50}, "is damaged"),
    "bits of another format": ({"storageType": "i", "pathOrInlineDv": "0" * 500}, "format is unknown"),
}


@pytest.mark.parametrize("harm", list(BITS))
@pytest.mark.parametrize("kind", ["i", "u"])
def test_wrong_bits_are_an_error(tmp_path: Path, harm: str, kind: str) -> None:
    change, message = BITS[harm]
    descriptor = put(tmp_path, kind, change(bitmap_array([1, 3])), 2)
    with pytest.raises(ss.CorruptionError, match=message) as raised:
        read(tmp_path, descriptor)
    assert str(tmp_path) in str(raised.value)
    assert ("x.parquet" if kind == "i" else NAME) in str(raised.value)


@pytest.mark.parametrize("harm", list(DESCRIPTORS))
def test_wrong_descriptors_are_an_error(tmp_path: Path, harm: str) -> None:
    change, message = DESCRIPTORS[harm]
    descriptor = put(tmp_path, "u", bitmap_array([1, 3]), 2) | change
    with pytest.raises(ss.CorruptionError, match=message) as raised:
        read(tmp_path, descriptor)
    assert str(tmp_path) in str(raised.value) and "x.parquet" in str(raised.value)


def test_a_checksum_and_a_version_are_checked(tmp_path: Path) -> None:
    descriptor = put(tmp_path, "u", bitmap_array([1, 3]), 2)
    file = tmp_path / "sub" / NAME
    whole = file.read_bytes()
    file.write_bytes(b"\2" + whole[1:])
    with pytest.raises(ss.CorruptionError, match="the version of its file"):
        read(tmp_path, descriptor)
    file.write_bytes(whole[:-9] + b"\7" + whole[-8:])
    with pytest.raises(ss.CorruptionError, match="checksum"):
        read(tmp_path, descriptor)


def _all_rows(count: int) -> bytes:
    """Runs of every row."""
    return struct.pack("<IQI", MAGIC, 1, 0) + BitMap(range(count), optimize=True).serialize()


def test_four_billion_rows_of_a_small_file_take_no_memory(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "x.parquet")
    data = _all_rows(1 << 32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for cardinality, message in ((1 << 32, "of 3 rows"), (3, "instead of 3")):
        with pytest.raises(ss.CorruptionError, match=message):
            read(tmp_path, put(tmp_path, "u", data, cardinality))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_two_million_rows_are_read_if_the_file_has_them(tmp_path: Path) -> None:
    count = 32 * 65536
    pq.write_table(pa.table({"a": pa.repeat(1, count)}), tmp_path / "x.parquet")
    assert len(read(tmp_path, put(tmp_path, "u", _all_rows(count), count))) == count


# -- whole tables ------------------------------------------------------------------------------------------------------


def _lake(folder: Path) -> Path:
    if not has("deltalake", 1, 4):
        pytest.skip("deltalake 1.4 or newer writes tables with deletion vectors")
    lake = folder / "t"
    for first in range(0, 50, 10):
        numbers = pa.table({"a": list(range(first, first + 10))})
        configuration = {"delta.enableDeletionVectors": "true"}
        deltalake.write_deltalake(lake, numbers, mode="append", configuration=configuration)
    return lake


def _delete(lake: Path, path: str, kind: str, rows: list[int]) -> None:
    log_lakes.delete_rows(lake, path, rows, put(lake, kind, bitmap_array(rows, has_runs=True), len(rows)))


@pytest.mark.parametrize("form", ["commits", "checkpoint", "parts", "json", "sidecars"])
def test_vectors_are_found_in_each_form_of_a_log(tmp_path: Path, form: str) -> None:
    lake = _lake(tmp_path)
    paths = log_lakes.paths_of(lake)
    for path, kind, rows in zip(paths, "iup", ([0], [1, 2], [3, 4, 5]), strict=False):
        _delete(lake, path, kind, rows)
    _delete(lake, paths[0], "i", [0, 9])  # instead of the first
    if form != "commits":
        deltalake.DeltaTable(lake).create_checkpoint()
        _reformed(lake, form)
    _delete(lake, paths[3], "i", [7])
    if form == "parts":  # a newer checkpoint, of which a part is missing
        (part,) = (lake / "_delta_log").glob("*.0000000001.0000000002.parquet")
        shutil.copy(part, part.with_name(f"{9:020d}.checkpoint.0000000001.0000000002.parquet"))
    table = ss.create(lake, source="delta", index_path=tmp_path / "index")
    rows = sorted(table.scan().to_table().column("a").to_pylist())
    assert len(rows) == 50 - 8
    if form in ("commits", "checkpoint"):
        assert rows == sorted(log_lakes.read_delta(lake).column("a").to_pylist())
    assert table.scan().count() == len(rows)
    if has("duckdb", 2):
        assert sorted(table.sql("SELECT a FROM self").fetchall()) == [(row,) for row in rows]


def _reformed(lake: Path, form: str) -> None:
    """Change a checkpoint into one of two parts, or of the second kind."""
    log = lake / "_delta_log"
    (classic,) = log.glob("*.checkpoint.parquet")
    if form == "checkpoint":
        return
    actions = pq.read_table(classic)
    stem = classic.name.split(".")[0]
    (log / "_last_checkpoint").unlink()
    if form == "parts":
        half = len(actions) // 2
        pq.write_table(actions.slice(0, half), log / f"{stem}.checkpoint.0000000001.0000000002.parquet")
        pq.write_table(actions.slice(half), log / f"{stem}.checkpoint.0000000002.0000000002.parquet")
    else:
        is_file = np.array([row is not None for row in actions.column("add").to_pylist()])
        (log / "_sidecars").mkdir()
        sidecar = log / "_sidecars" / "files.parquet"
        pq.write_table(actions.filter(pa.array(is_file)).select(["add"]), sidecar)
        named = {"path": sidecar.name, "sizeInBytes": sidecar.stat().st_size, "modificationTime": 1}
        others = actions.filter(pa.array(~is_file)).drop_columns(["add"])
        name = f"{stem}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11"
        if form == "json":
            lines = [{key: _plain(value) for key, value in row.items() if value} for row in others.to_pylist()]
            (log / f"{name}.json").write_text("\n".join(map(json.dumps, [*lines, {"sidecar": named}])))
        else:
            sidecars = pa.array([named, *[None] * (len(others) - 1)])
            others = others.drop_columns([name for name in others.column_names if name == "sidecar"])
            pq.write_table(others.append_column("sidecar", sidecars), log / f"{name}.parquet")
    classic.unlink()


def _plain(value: Any) -> Any:
    """A cell of a checkpoint as JSON has it: maps are objects."""
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        return dict(value)
    if isinstance(value, dict):
        maps = ("configuration", "options")
        return {k: {} if k in maps and v == [] else _plain(v) for k, v in value.items() if v is not None}
    return value


def test_a_damaged_vector_is_an_error_of_its_file_alone(tmp_path: Path) -> None:
    lake = _lake(tmp_path)
    paths = log_lakes.paths_of(lake)
    _delete(lake, paths[0], "i", [1])
    _delete(lake, paths[1], "u", [2])
    table = ss.create(lake, source="delta", index_path=tmp_path / "index")
    (lake / "sub" / NAME).write_bytes(b"\1damaged, and long enough for no offset beyond its end or size of the whole")
    with pytest.raises(ss.CorruptionError, match=NAME) as raised:
        table.scan().to_table()
    assert str(lake) in str(raised.value)
    first = pq.read_table(lake / paths[0]).column("a").to_pylist()
    rows = table.scan(f"a between {min(first)} and {max(first)}").to_table().column("a").to_pylist()
    assert sorted(rows) == [a for i, a in enumerate(first) if i != 1]
