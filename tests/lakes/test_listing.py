"""Listing a lake, attaching what was found task by task, and following it: against walking the directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.engine.lakes import directory as listing
from skipstone.engine.lakes.directory import entries_of, list_parquet
from skipstone.engine.storage import open_storage
from skipstone.engine.tasks import attach


def _walked(root: Path) -> list[str]:
    """The visible Parquet files below a folder, by walking it."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f[0] not in "._" or (f[0] == "_" and "=" in f)]
        endings = (".parquet", ".parq", ".pq")
        names = [f for f in files if f[0] not in "._" and (f.lower().endswith(endings) or "." not in f)]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found, key=os.fsencode)


def _listed(root: Path, progress: Callable[..., None] | None = None) -> list[str]:
    listing = list_parquet(open_storage(root), open_storage(root / ".skipstone"), progress)
    return [entry.path for entry in entries_of(listing)]


@pytest.mark.parametrize("shape", ["flat", "deep", "many folders", "empty"])
def test_a_listing_finds_every_file_in_any_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    monkeypatch.setattr(listing, "_ROWS_AT_ONCE", 64)  # so that a small lake has many chunks
    names = {
        "flat": [f"part-{i}.parquet" for i in range(1_000)],
        "deep": ["".join(f"k{level}={i % 3}/" for level in range(i % 40)) + f"{i}.parquet" for i in range(200)],
        "many folders": [f"a={i % 30}/b={i}/0.parquet" for i in range(600)],
        "empty": [],
    }[shape]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    collected: list[tuple[str, int, int | None]] = []
    found = _listed(tmp_path, lambda *call: collected.append(call))
    assert found == _walked(tmp_path) == sorted(names)
    files = [done for step, done, _ in collected if step == "files"]
    folders = [(done, total) for step, done, total in collected if step == "folders"]
    assert files == sorted(files) and files[-1] == len(names)
    assert folders[-1] == (folders[-1][1],) * 2 == (1 + sum(len(dirs) for _, dirs, _ in os.walk(tmp_path)),) * 2


def test_hidden_names_are_left_out_and_odd_names_are_kept(tmp_path: Path) -> None:
    kept = ["a.parquet", "b.parq", "c.pq", "d.PARQUET", "e.Parq", "f.PQ", "plain"]
    kept += ["_k=1/x.parquet", "k=ä/ü 日本.parquet", "k=%2F/[x]*?.parquet"]
    hidden = ["_temporary/x.parquet", ".hidden/x.parquet", "_x.parquet", ".x.parquet", "readme.txt", "x.parquet.crc"]
    hidden += ["_delta_log/0.parquet", ".k=1/x.parquet", "k=1/_SUCCESS", "k=1/.part.parquet"]
    for name in kept + hidden:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert _listed(tmp_path) == _walked(tmp_path) == sorted(kept, key=os.fsencode)


def _make(path: Path, *values: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path)


@pytest.mark.parametrize("task_files", [1, 3, 10, 11])
def test_files_are_attached_in_tasks_and_are_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_files: int
) -> None:
    monkeypatch.setattr(attach, "TASK_FILES", task_files)
    for number in range(10):
        _make(tmp_path / f"k={number % 2}" / f"{number}.parquet", 10 * number, 10 * number + 1)
    (tmp_path / "k=0" / "3.parquet").write_bytes(b"PAR1 half of it")
    collected: list[tuple[str, int, int | None]] = []
    with ss.create(tmp_path, progress=lambda *one: collected.append(one)) as table:
        assert [done for step, done, total in collected if step == "footers" and total == 11][-1] >= 10
        assert table.scan().count() == 20
        assert table.scan("a = 70 AND k = 1").files()["path"].to_pylist() == ["k=1/7.parquet"]
        assert table.scan("a = 71").row_groups().to_pylist() == [{"path": "k=1/7.parquet", "row_group": 0}]
        assert sorted(table.files()["path"].to_pylist()) == sorted(f"k={n % 2}/{n}.parquet" for n in range(10))
        for number in range(200, 207):
            _make(tmp_path / "k=5" / f"{number}.parquet", number)
        assert table.sync() == 2
        assert table.scan("a >= 200").to_table()["a"].to_pylist() == list(range(200, 207))
        assert [(f.kind, f.path) for f in table.verify(deep=True)] == [("quarantined", "k=0/3.parquet")]


def test_columns_that_only_later_tasks_meet_are_the_tables_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "TASK_FILES", 2)
    for number in range(5):
        rows = {"a": [number], **({"b": [f"b{number}"]} if number > 2 else {})}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet")
    with ss.create(tmp_path) as table:
        assert table.schema.names == ["a", "b"]
        assert table.scan("b = 'b4'").files()["path"].to_pylist() == ["4.parquet"]
        assert table.scan("b IS NULL").count() == 3
    for number in range(5, 10):
        pq.write_table(pa.table({"a": ["text"]}), tmp_path / f"{number}.parquet")
    with pytest.raises(ss.SchemaError, match=r"5\.parquet"):
        ss.create(tmp_path, index_path=tmp_path / "other")
    assert not [path for path in (tmp_path / "other").rglob("*") if path.is_file()]  # every task's file is removed


# -- following it, at random ------------------------------------------------------------------------------------------

PATHS = [f"k={k}/{n}.parquet" for k in (1, 2) for n in range(3)]
STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "touch", "delete", "half", "remove", "move"]), st.sampled_from(PATHS)),
    max_size=6,
)


@settings(max_examples=examples(8))
@given(data=st.data())
def test_sync_follows_whatever_was_done_to_the_directory(data: st.DataObject) -> None:
    """After each sync a table has the whole files of the directory, except unchanged ones that were removed from it.
    A live file that was cut short stays live."""
    root = Path(tempfile.mkdtemp())
    clock = 1_700_000_000
    out: dict[str, tuple[int, int]] = {}
    try:
        _make(root / "k=0/stays.parquet", 0)
        table = ss.create(root)
        for _ in range(3):
            for step, name in data.draw(STEPS):
                clock += 1
                _do(table, root, step, name, clock, out)
            before, noted = _state(table), table.version
            version = table.sync()
            assert _state(table) == _expected(root, out, before)
            assert (version == noted) <= (before == _state(table))
            assert table.sync() == version
    finally:
        shutil.rmtree(root)


def _do(table: ss.Table, root: Path, step: str, name: str, clock: int, out: dict[str, tuple[int, int]]) -> None:
    path = root / name
    if step == "write":
        _make(path, *range(clock % 7 + 1))
    elif step == "half":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1" + b"x" * (clock % 5))
    elif step == "remove" and name in table.files()["path"].to_pylist():
        with table.transaction() as tx:
            tx.remove([name])
        row = next(r for r in _rows(table, before=True) if r["path"] == name)
        out[name] = (row["size_bytes"], row["modified_ns"])
    elif not path.exists():
        return
    elif step == "delete":
        path.unlink()
    elif step == "move":
        os.replace(path, path.with_name("moved.parquet"))
    if step in ("write", "half", "touch") and path.exists():
        os.utime(path, (clock, clock))


def _rows(table: ss.Table, before: bool = False) -> list[dict]:
    names = ["path", "size_bytes", "modified_ns"]
    found = table.handle.snapshot.removed_files() if before else table.handle.snapshot.files()
    return found.select(names).to_pylist()


def _state(table: ss.Table) -> dict[str, tuple[int, int]]:
    return {row["path"]: (row["size_bytes"], row["modified_ns"]) for row in _rows(table)}


def _expected(
    root: Path, out: dict[str, tuple[int, int]], before: dict[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    found = {}
    for name in _walked(root):
        status = (root / name).stat()
        identity = status.st_size, status.st_mtime_ns
        if out.get(name) != identity and status.st_size > 20:
            found[name] = identity
        elif status.st_size <= 20 and name in before:
            found[name] = before[name]
    return found
