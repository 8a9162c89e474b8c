"""Many keys looked up at once: the rows that hold one of them, all and only these, whatever an index knows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss

MANY = 1500  # more than are made an IN


def _table(root: Path, values: pa.Array, files: int = 5) -> ss.Table:
    size = -(-len(values) // files)
    for number in range(files):
        part = values.slice(number * size, size)
        rows = {"k": part, "n": pa.array(range(number * size, number * size + len(part)), pa.int64())}
        pq.write_table(pa.table(rows), root / f"{number}.parquet", row_group_size=100)
    return ss.create(root)


@pytest.mark.parametrize("is_indexed", [False, True])
def test_where_rows_lie(tmp_path: Path, is_indexed: bool) -> None:
    table = _table(tmp_path, pa.array([f"v{i % 2500}" for i in range(5000)]))
    if is_indexed:
        table.create_index("k", kind="secondary")
    for keys in ([f"v{i}" for i in range(900, 900 + MANY)], ["v17", "v2499", "none"], []):
        for plan in (table.lookup(keys, on="k"), table.scan(ss.col("k").is_in(keys), limit=1, columns=["n"])):
            wanted = [(f"{i // 1000}.parquet", i % 1000) for i in range(5000) if f"v{i % 2500}" in set(keys)]
            positions = plan.positions()
            assert positions.schema == pa.schema([("path", pa.string()), ("row", pa.int64())])
            assert sorted(zip(*positions.to_pydict().values(), strict=True)) == wanted
            affected = plan.affected_files()
            assert affected.schema == plan.files().schema
            assert sorted(affected["path"].to_pylist()) == sorted({path for path, _ in wanted})
    (tmp_path / "3.parquet").unlink()
    with pytest.raises(ss.NotReadableError, match=r"3\.parquet"):
        table.scan("n % 2 = 0").positions()


def test_deleted_rows_lie_nowhere_and_are_counted(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    from log_lakes import delete_rows, paths_of

    rows = pa.table({"k": [1, 2, 1, 2, 1]})
    deltalake.write_deltalake(str(tmp_path), rows, configuration={"delta.enableDeletionVectors": "true"})
    (path,) = paths_of(tmp_path)
    delete_rows(tmp_path, path, [0, 3])
    table = ss.create(tmp_path)
    assert table.scan("k = 1").positions().to_pydict() == {"path": [path, path], "row": [2, 4]}
    table.create_index("k", kind="secondary")
    assert table.lookup([2], on="k").positions().to_pydict() == {"path": [path], "row": [1]}


@pytest.mark.parametrize("kind", [pa.time64("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns")], ids=str)
def test_nanoseconds_of_keys_are_not_cut_off(tmp_path: Path, kind: pa.DataType) -> None:
    """Python's times have none: the greatest key was one below, and the last file was not looked at."""
    table = _table(tmp_path, pa.array(range(5000), pa.int64()).cast(kind))
    for first in (0, 499, 1201, 3003):
        keys = pa.array(range(first, first + MANY), pa.int64()).cast(kind)
        plan = table.lookup(pa.table({"k": keys}))
        assert sorted(plan.to_table()["n"].to_pylist()) == list(range(first, first + MANY))
