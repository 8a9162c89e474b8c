"""A file, link or folder in the place of the index or of a part of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss

ODD = ("a file", "a link that leads nowhere")


def _lake(root: Path) -> Path:
    root.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3]}), root / "a.parquet")
    return root


def _put(odd: str, path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if odd == "a folder":
        path.mkdir()
    elif odd == "a file":
        path.write_text("mine")
    else:
        path.symlink_to("nowhere")


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("index", [None, "elsewhere"])
def test_a_file_in_the_place_of_the_index_is_named(tmp_path: Path, odd: str, index: str | None) -> None:
    lake = _lake(tmp_path / "lake")
    place = tmp_path / index if index else lake / ".skipstone"
    options = {"index_path": place} if index else {}
    _put(odd, place)
    for action in (
        lambda: ss.create(lake, **options),
        lambda: ss.open(lake, **options),
        lambda: ss.open(lake, version=1, **options),
        lambda: ss.create(lake, source="directory", files=["a.parquet"], **options),
    ):
        with pytest.raises(ss.StorageError, match=r"in its place, or a link.*index_path=") as caught:
            action()
        assert str(place) in str(caught.value)
    assert place.is_symlink() or place.read_text() == "mine"


def test_the_index_hides_no_files_of_the_table(tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake")
    shutil.copytree(lake, lake / "p")
    for place, reason in ((lake, "the table's own folder"), (lake / "p", "contains p/a.parquet, which would not")):
        with pytest.raises(ss.InvalidArgumentError, match=rf"{reason}.*index_path="):
            ss.create(lake, index_path=place)
    (tmp_path / "link").symlink_to(lake)  # under which the index's own files are not files of the table either
    table = ss.create(tmp_path / "link", index_path=lake / "index")
    assert table.sync() == 1 and table.scan().count() == 6 and table.verify() == []


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("folder", ["timeline", "timeline/00000", "tasks", "runs"])
def test_a_file_in_the_place_of_a_folder_of_the_index_is_named(tmp_path: Path, odd: str, folder: str) -> None:
    lake = _lake(tmp_path / "lake")
    _put(odd, lake / ".skipstone" / folder)
    with pytest.raises(ss.StorageError, match="a file is in its place") as caught:
        ss.create(lake)
    assert str(lake / ".skipstone" / folder) in str(caught.value)


@pytest.mark.parametrize("odd", [*ODD, "a folder"])
def test_a_hint_that_cannot_be_read_is_as_none(tmp_path: Path, odd: str) -> None:
    lake = _lake(tmp_path / "lake")
    table = ss.create(lake)
    hint = lake / ".skipstone/timeline/HINT"
    for version in (2, 3):
        hint.unlink(missing_ok=True) if not hint.is_dir() else shutil.rmtree(hint)
        _put(odd, hint)
        table.handle.forget()  # this process has the latest version in memory
        with ss.open(lake) as again, again.transaction() as tx:
            tx.write(pa.table({"id": [version]}))
        ss.open(lake).handle.forget()
        assert (ss.open(lake).version, ss.open(lake).scan().count()) == (version, version + 2)
