"""Declared files, and `verify`: impossible names, statistics and paths are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from faults import flipped, index_files
from lake_strategies import add_files, make_file, remove_files
from skipstone.bloom import hashing
from skipstone.engine.state import run_lookups, runs


@pytest.mark.parametrize("kind", ["manifest", "stats", "filter", "instant"])
def test_verify_reports_damage_and_does_not_raise(tmp_path: Path, kind: str) -> None:
    make_file(tmp_path, "one.parquet", {"a": [1, 2]})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom")
    path = index_files(table)[kind][0]
    table.handle.forget()
    for offset in (10, path.stat().st_size * 2 // 3):  # not the padding between filters, which is not read
        with flipped(path, offset):
            assert {f.kind for f in table.verify(deep=True)} == {"damaged"}
            assert {f.kind for f in table.verify()} <= {"damaged"}
        table.handle.forget()
    assert table.verify(deep=True) == []


def test_files_elsewhere_keep_their_names(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    add_files(table, pa.table({"path": ["s3://bucket//x.parquet"], "size_bytes": [1], "row_count": [1]}))
    assert table.files().column("path").to_pylist() == ["s3://bucket//x.parquet"]


_TWO_BOUNDS = pa.StructArray.from_arrays([pa.array([{"min": 1}]), pa.array([{"min": 2}])], names=["a", "a"])
_TWO_VALUES = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["p", "p"])
_NULLS = [{"null_count": -1}, {"null_count": 11}, {"null_count": 10, "min": 1, "max": 9}]
_NAN = [
    {"nan_count": -1},
    {"nan_count": 11},
    {"null_count": 5, "nan_count": 6},
    {"null_count": 5, "nan_count": 5, "min": 1.0},
    {"nan_count": 10, "min": 1.0, "max": 2.0},
]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("size_bytes", [2**62], "size_bytes"),  # the sum of two files is no int64
        ("row_count", [2**62], "row_count"),
        *(("stats", [{"a": counts}], "'a'") for counts in _NULLS),
        *(("stats", [{"f": counts}], "'f'") for counts in _NAN),
        ("stats", _TWO_BOUNDS, "'a' twice"),
        *(("partition", [{"p": value}], "partition") for value in ("abc", 1.5)),
        ("partition", _TWO_VALUES, "partition"),
        ("path", ["y.parquet"], "'path' twice"),
    ],
)
def test_declared_values_that_no_file_can_have_are_refused(
    tmp_path: Path, column: str, values: object, message: str
) -> None:
    """If they were believed, a file could be excluded wrongly, or no version could be opened."""
    schema = pa.schema([("a", pa.int64()), ("f", pa.float64()), ("p", pa.int64())])
    table = ss.create(tmp_path, schema=schema, partitioning=["p"])
    declared = pa.table({"path": ["x.parquet"], "size_bytes": [1], "row_count": [10]})
    if column in ("size_bytes", "row_count"):
        declared = declared.drop(column)
    declared = declared.append_column(column, values if isinstance(values, pa.Array) else pa.array(values))
    if values == [2**62]:
        other = declared.set_column(declared.column_names.index("path"), "path", pa.array(["y.parquet"]))
        declared = pa.concat_tables([declared, other])
    with pytest.raises(ss.SchemaError, match=message):
        add_files(table, declared)


@pytest.mark.parametrize("is_declared_before", [True, False])
def test_a_live_path_is_refused_though_it_is_declared_for_another_partition(
    tmp_path: Path, is_declared_before: bool
) -> None:
    """One of two additions declares a partition that is not in the path; another file declares nothing."""
    make_file(tmp_path, "p=1/a.parquet", {"a": [1]})
    for name in ("b.parquet", "c.parquet"):
        make_file(tmp_path, f"p=3/{name}", {"a": [2]})
    table = ss.create(tmp_path, files=["p=3/b.parquet"])
    partition = pa.array([{"p": 3}], pa.struct([("p", table.schema.field("p").type)]))
    size = (tmp_path / "p=1/a.parquet").stat().st_size
    declared = pa.table({"path": ["p=1/a.parquet"], "size_bytes": [size], "row_count": [1], "partition": partition})
    first, second = (declared, ["p=1/a.parquet"]) if is_declared_before else (["p=1/a.parquet"], declared)
    with table.transaction() as tx:
        tx.add_files(first)
        if is_declared_before:
            tx.add_files(["p=3/c.parquet"])
    with pytest.raises(ss.InvalidArgumentError, match=r"a\.parquet: in the table already"), table.transaction() as tx:
        tx.add_files(second)
        if not is_declared_before:
            tx.add_files(["p=3/c.parquet"])


def test_verify_compares_declared_counts_with_footers(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    file = tmp_path / make_file(tmp_path, "f.parquet", {"a": [1, 2, 3]})
    add_files(table, pa.table({"path": [file.name], "size_bytes": [file.stat().st_size], "row_count": [999]}))
    assert table.verify() == []
    (finding,) = table.verify(deep=True)
    assert (finding.kind, finding.path) == ("miscounted", "f.parquet") and "3 rows, but 999" in finding.message


def test_a_column_whose_statistics_are_null_is_unknown(tmp_path: Path) -> None:
    """pyarrow infers them as of the type null."""
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    known = {"min": 1, "max": 3, "null_count": 0, "nan_count": None}
    declared = {"path": ["x.parquet"], "size_bytes": [1], "row_count": [3], "stats": [{"a": known, "b": None}]}
    add_files(table, pa.table(declared))
    assert table.scan("a = 9").files().num_rows == 0 and table.scan("b = 9").files().num_rows == 1


@pytest.mark.parametrize(("key", "collide"), [(None, False), ("k", False), ("k", True)])
def test_a_live_path_is_found_in_large_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, collide: bool
) -> None:
    """A commit compares hashes of paths with those of large runs, block by block. All runs are large here, and all
    hashes may be the same."""
    for module in (run_lookups, runs):
        monkeypatch.setattr(module, "BLOCK_ENTRIES_MAX", 0)
    if collide:
        same = SimpleNamespace(present=lambda: np.zeros(1, np.uint64))
        monkeypatch.setattr(hashing, "hash_array", lambda strings: same)
    random = np.random.default_rng(collide)
    schema = pa.schema([("a", pa.int64()), *([(key, pa.int64())] if key else [])])
    table = ss.create(tmp_path, schema=schema, partitioning=[key] if key else None)
    pool = [f"{key}={n % 3}/{n}.parquet" if key else f"{n}.parquet" for n in range(30)]
    live: set[str] = set()
    refused = 0
    for _ in range(30):
        chosen = random.choice(pool, 3, replace=False).tolist()
        if live and random.random() < 0.4:
            removed = random.choice(sorted(live), min(len(live), 4), replace=False).tolist()
            remove_files(table, removed)
            live -= {*removed}
        elif live.intersection(chosen):
            refused += 1
            with pytest.raises(ss.InvalidArgumentError, match="in the table already"), table.transaction() as tx:
                tx.add_files(pa.table({"path": chosen, "size_bytes": [1] * 3, "row_count": [1] * 3}))
        else:
            add_files(table, pa.table({"path": chosen, "size_bytes": [1] * 3, "row_count": [1] * 3}))
            live |= {*chosen}
        assert {*table.files().column("path").to_pylist()} == live
    assert 2 < refused < 25
