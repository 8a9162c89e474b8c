"""Files that callers tell of, and `verify`: odd names, statistics and paths are refused or kept as they are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from faults import flipped, index_files
from skipstone.bloom import hashing
from skipstone.engine.state import run_lookups, runs


def _file(root: Path, name: str, values: list[int]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": values}), root / name)
    return root / name


@pytest.mark.parametrize("kind", ["manifest", "stats", "filter", "instant"])
def test_verify_finds_and_does_not_raise(tmp_path: Path, kind: str) -> None:
    _file(tmp_path, "one.parquet", [1, 2])
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom")
    path = index_files(table)[kind][0]
    table.handle.forget()
    for offset in (10, path.stat().st_size * 2 // 3):  # not the padding between filters, which nobody reads
        with flipped(path, offset):
            assert {f.kind for f in table.verify(deep=True)} == {"damaged"}
            assert {f.kind for f in table.verify()} <= {"damaged"}
        table.handle.forget()
    assert table.verify(deep=True) == []


def test_files_elsewhere_keep_their_names(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    with table.transaction() as tx:
        tx.add_files(pa.table({"path": ["s3://bucket//x.parquet"], "size_bytes": [1], "row_count": [1]}))
    assert table.files().column("path").to_pylist() == ["s3://bucket//x.parquet"]


@pytest.mark.parametrize("name", ["size_bytes", "row_count"])
def test_counts_that_no_file_has_are_refused(tmp_path: Path, name: str) -> None:
    """Their sum is no int64, and no version with it could be opened."""
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    declared = {"path": ["x.parquet", "y.parquet"], "size_bytes": [1, 1], "row_count": [1, 1], name: [2**63 - 1] * 2}
    with pytest.raises(ss.SchemaError, match=name), table.transaction() as tx:
        tx.add_files(pa.table(declared))


@pytest.mark.parametrize("counts", [{"null_count": -1}, {"null_count": 11}, {"null_count": 10, "min": 1, "max": 9}])
def test_statistics_that_cannot_be_are_refused(tmp_path: Path, counts: dict) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    declared = {"path": ["x.parquet"], "size_bytes": [1], "row_count": [10], "stats": [{"a": counts}]}
    with pytest.raises(ss.SchemaError, match="'a'"), table.transaction() as tx:
        tx.add_files(pa.table(declared))


@pytest.mark.parametrize(
    "counts",
    [
        {"nan_count": -1},
        {"nan_count": 11},
        {"null_count": 5, "nan_count": 6},
        {"null_count": 5, "nan_count": 5, "min": 1.0},
        {"nan_count": 10, "min": 1.0, "max": 2.0},
    ],
)
def test_nan_counts_that_cannot_be_are_refused(tmp_path: Path, counts: dict) -> None:
    """Believed, ten NaN of ten rows would rule out what the bounds say is there."""
    table = ss.create(tmp_path, schema=pa.schema([("f", pa.float64())]))
    declared = {"path": ["x.parquet"], "size_bytes": [1], "row_count": [10], "stats": [{"f": counts}]}
    with pytest.raises(ss.SchemaError, match="'f'"), table.transaction() as tx:
        tx.add_files(pa.table(declared))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"p": "abc"}]),
        pa.array([{"p": 1.5}]),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["p", "p"]),
    ],
)
def test_partitions_that_are_none_are_refused(tmp_path: Path, column: pa.Array) -> None:
    schema = pa.schema([("a", pa.int64()), ("p", pa.int64())])
    table = ss.create(tmp_path, schema=schema, partitioning=["p"])
    declared = pa.table({"path": ["x.parquet"], "size_bytes": [1], "row_count": [1], "partition": column})
    with pytest.raises(ss.SchemaError, match="partition"), table.transaction() as tx:
        tx.add_files(declared)


def test_what_is_told_twice_is_refused(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    declared = pa.table({"path": ["x.parquet"], "size_bytes": [1], "row_count": [1]})
    bounds = pa.StructArray.from_arrays([pa.array([{"min": 1}]), pa.array([{"min": 2}])], names=["a", "a"])
    twice = declared.append_column("path", pa.array(["y.parquet"]))
    for files, name in ((twice, "path"), (declared.append_column("stats", bounds), "a")):
        with pytest.raises(ss.SchemaError, match=f"'{name}' twice"), table.transaction() as tx:
            tx.add_files(files)


@pytest.mark.parametrize("given", [5, [5], b"x", {"x": 1}])
def test_paths_that_are_none(tmp_path: Path, given: object) -> None:
    _file(tmp_path, "one.parquet", [1])
    table = ss.create(tmp_path)
    for act in ("add_files", "remove"):
        with pytest.raises(ss.InvalidArgumentError), table.transaction() as tx:
            getattr(tx, act)(given)
    assert table.version == 1


def test_a_path_that_is_live_is_refused_beside_files_that_declare_nothing(tmp_path: Path) -> None:
    """A file that declares its partition may be live in another one than its path says."""
    for name in ("p=1/a.parquet", "p=3/b.parquet"):
        _file((tmp_path / name).parent, Path(name).name, [1])
    table = ss.create(tmp_path)
    _file(tmp_path / "p=3", "c.parquet", [2])
    partition = pa.array([{"p": 3}], pa.struct([("p", table.schema.field("p").type)]))
    declared = {"path": ["p=1/a.parquet"], "size_bytes": [1], "row_count": [1], "partition": partition}
    with pytest.raises(ss.InvalidArgumentError, match=r"a\.parquet: in the table already"), table.transaction() as tx:
        tx.add_files(pa.table(declared))
        tx.add_files(["p=3/c.parquet"])


def test_a_file_declared_beside_others_that_declare_nothing_is_not_added_again_under_its_path(tmp_path: Path) -> None:
    for name in ("p=3/b.parquet", "p=3/c.parquet"):
        _file((tmp_path / name).parent, Path(name).name, [1])
    table = ss.create(tmp_path, files=["p=3/b.parquet"])
    declared = _file(tmp_path / "p=1", "d.parquet", [2])
    partition = pa.array([{"p": 3}], pa.struct([("p", table.schema.field("p").type)]))
    size = declared.stat().st_size
    with table.transaction() as tx:
        tx.add_files(
            pa.table({"path": ["p=1/d.parquet"], "size_bytes": [size], "row_count": [1], "partition": partition})
        )
        tx.add_files(["p=3/c.parquet"])
    refused = pytest.raises(ss.InvalidArgumentError, match=r"d\.parquet: in the table already")
    with refused, ss.open(tmp_path).transaction() as tx:
        tx.add_files(["p=1/d.parquet"])


def test_verify_compares_declared_counts_with_footers(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    file = _file(tmp_path, "f.parquet", [1, 2, 3])
    with table.transaction() as tx:
        tx.add_files(pa.table({"path": [file.name], "size_bytes": [file.stat().st_size], "row_count": [999]}))
    assert table.verify() == []
    (finding,) = table.verify(deep=True)
    assert (finding.kind, finding.path) == ("miscounted", "f.parquet") and "3 rows, but 999" in finding.message


def test_statistics_of_a_column_that_nobody_knows_are_none(tmp_path: Path) -> None:
    """pyarrow infers them as of the type null."""
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    known = {"min": 1, "max": 3, "null_count": 0, "nan_count": None}
    declared = {"path": ["x.parquet"], "size_bytes": [1], "row_count": [3], "stats": [{"a": known, "b": None}]}
    with table.transaction() as tx:
        tx.add_files(pa.table(declared))
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
            with table.transaction() as tx:
                tx.remove(removed)
            live -= {*removed}
        elif live.intersection(chosen):
            refused += 1
            with pytest.raises(ss.InvalidArgumentError, match="in the table already"), table.transaction() as tx:
                tx.add_files(pa.table({"path": chosen, "size_bytes": [1] * 3, "row_count": [1] * 3}))
        else:
            with table.transaction() as tx:
                tx.add_files(pa.table({"path": chosen, "size_bytes": [1] * 3, "row_count": [1] * 3}))
            live |= {*chosen}
        assert {*table.files().column("path").to_pylist()} == live
    assert 2 < refused < 25
