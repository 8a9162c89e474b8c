"""Clean removes only Skipstone's files: by their exact names, below its root, and through no link."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import make_file, remove_files, write_rows

LONG_AGO = 1_000_000_000
TX = "0123456789abcdef0123456789abcdef"
TEMPORARY = f"._tmp-{TX}"

OWN = [
    f"queue/0123456789012345-{TX}",
    f"queue/{TEMPORARY}",
    f"runs/01/{TX}-0-m.sbf",
    f"tasks/01/{TX}-attached-0.sbf",
    f"tasks/01/{TEMPORARY}",
    f"timeline/00000/{TEMPORARY}",
    f"timeline/{TEMPORARY}",
]
FOREIGN = [
    f"pending/{TX}.json",
    "queue/orders",
    "queue/orders-backup.csv",
    "queue/2024/orders-1.parquet",
    f"queue/2024/0123456789012345-{TX}",
    f"queue/2024/{TEMPORARY}",
    f"queue/{TX}",
    f"queue/0123456789012345-{TX}.bak",
    f"queue/0123456789012345-{TX.upper()}",
    "queue/._tmp-mine",
    f"runs/{TX}-0-m.sbf",
    f"runs/02/{TX}-0-m.sbf",
    f"runs/01/old/{TX}-0-m.sbf",
    f"runs/01/{TX}.sbf",
    f"runs/01/{TX}-0-m.sbf.bak",
    f"runs/01/copy-of-{TX}-0-m.sbf",
    f"tasks/01/{TX}-a b.sbf",
    f"tasks/01/{TEMPORARY}.txt",
    f"tasks/{TEMPORARY}",
    f"elsewhere/{TX}-0-m.sbf",
    TEMPORARY,
]


def _write(root: Path, names: list[str]) -> set[Path]:
    """Old files below a root."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
        os.utime(path, (LONG_AGO, LONG_AGO))
    return {root / name for name in names}


def _standing(paths: set[Path]) -> set[Path]:
    return {path for path in paths if os.path.lexists(path)}


def _lake(root: Path, **options: object) -> ss.Table:
    table = ss.create(root / "lake", schema=pa.schema([("x", pa.int64()), ("p", pa.string())]), **options)
    write_rows(table, pa.table({"x": [1, 2], "p": ["a", "b"]}))
    return table


def test_rule_45_clean_removes_files_whose_names_are_its_own_and_no_others(tmp_path: Path) -> None:
    root = tmp_path / "project"
    table = _lake(tmp_path, index_path=root)
    own, foreign = _write(root, OWN), _write(root, FOREIGN)
    result = table.clean()
    assert {root / path for path in result["path"].to_pylist()} == own
    assert _standing(own) == set() and _standing(foreign) == foreign
    assert table.scan("x = 2").count() == 1 and table.verify(deep=True) == []


def test_clean_of_data_leaves_files_that_only_look_like_its_own(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    names = ["._tmp-mine", f"._tmp-{TX}.txt", f"part-{TX}.parquet", f"part-{TX}-mine.parquet", f"part-{TX}-1-2.parquet"]
    foreign = _write(tmp_path / "lake", [*names, *(f"p=a/{name}" for name in names)])
    foreign |= _write(tmp_path / "lake/archive/.skipstone/runs/01", [TEMPORARY])
    own = _write(tmp_path / "lake", [TEMPORARY, f"p=a/{TEMPORARY}"])
    table.clean(delete_data=True)
    assert _standing(own) == set() and _standing(foreign) == foreign


@pytest.mark.parametrize("linked", ["queue", "runs/01", "tasks", "timeline/00000", f"runs/01/{TX}-0-m.sbf"])
def test_rule_45_clean_follows_no_link_out_of_the_index(tmp_path: Path, linked: str) -> None:
    table = _lake(tmp_path)
    root, outside = Path(table.handle.index_storage.root), tmp_path / "outside"
    if (root / linked).exists():
        (root / linked).rename(outside)
    inside = [name.removeprefix(f"{linked}/") for name in OWN if name.startswith(f"{linked}/")]
    foreign = _write(outside, inside) or _write(tmp_path, ["outside"])
    (root / linked).parent.mkdir(exist_ok=True)
    (root / linked).symlink_to(outside)
    assert table.clean()["path"].to_pylist() == []
    assert foreign and _standing(foreign) == foreign and (root / linked).is_symlink()


@pytest.mark.parametrize("is_folder", [True, False])
def test_clean_of_data_removes_nothing_behind_a_link(tmp_path: Path, is_folder: bool) -> None:
    """A file removed from the table, a file of a dead writer, and a temporary file."""
    lake, outside = tmp_path / "lake", tmp_path / "outside"
    make_file(outside, "b.parquet", {"x": [1]})
    make_file(lake, "a.parquet", {"x": [1]})
    name = "link/b.parquet" if is_folder else "b.parquet"
    foreign = {outside / "b.parquet"}
    if is_folder:
        foreign |= _write(outside, [TEMPORARY])
    (lake / "link" if is_folder else lake / name).symlink_to(outside if is_folder else outside / "b.parquet")
    table = ss.create(lake)
    assert table.scan().count() == 2
    remove_files(table, [name])
    result = table.clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=True)
    assert "data" not in result["kind"].to_pylist() and _standing(foreign | {lake / name}) == foreign | {lake / name}
    assert table.scan().count() == 1


def test_a_transaction_that_fails_removes_nothing_behind_a_link(tmp_path: Path) -> None:
    table = ss.create(tmp_path / "lake", schema=pa.schema([("x", pa.int64()), ("p", pa.string())]), partitioning=["p"])
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "lake/p=a").symlink_to(outside)
    with pytest.raises(ZeroDivisionError), table.transaction() as tx:
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(pa.table({"x": [1], "p": ["a"]}))
        tx.add_task(task.result)
        [written] = outside.iterdir()
        raise ZeroDivisionError
    assert list(outside.iterdir()) == [written]
    assert table.sync() == table.version and table.scan().count() == 0  # a sync does not add it


@pytest.mark.parametrize("path", ["../outside", "p=a/../../outside", "/etc/nothing", "file:///etc/nothing"])
def test_rule_45_nothing_outside_of_a_root_is_removed(tmp_path: Path, path: str) -> None:
    [outside] = _write(tmp_path, ["outside"])
    table = _lake(tmp_path)
    with pytest.raises(ss.StorageError, match="below the root"):
        table.handle.storage.delete(path)
    assert outside.exists()
