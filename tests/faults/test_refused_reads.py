"""The system refuses to open a file: that is a StorageError, nothing is committed, and no file is reported damaged."""

from __future__ import annotations

import contextlib
import resource
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import skipstone as ss
from example_counts import few_of
from lake_strategies import make_file

FILES = 12


def _lake(root: Path, files: int = FILES) -> Path:
    for number in range(files):
        rows = {"n": [number, number + 100], "s": [f"a{number}", "b"]}
        make_file(root, f"day={number % 2}/f{number}.parquet", rows)
    return root


@contextlib.contextmanager
def free_handles(count: int) -> Iterator[None]:
    """Inside the block, this process can open `count` more files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limits[0]), limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(open("/dev/null"))  # noqa: SIM115 - closed below
        for file in held[:count]:
            file.close()
        yield
    finally:
        for file in held:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _build(table: ss.Table, kind: str) -> int:
    table.create_index("n", kind=kind)
    assert [i["files_covered"] for i in table.indexes().to_pylist() if i["name"] == f"{kind}(n)"] == [FILES]
    return 2 * FILES


ACTIONS: dict[str, Callable[[Path, Path], int]] = {  # each returns the number of rows
    "create": lambda lake, index: 2 * FILES * (ss.create(lake, index_path=index).version == 1),
    "sync": lambda lake, index: 2 * FILES * (ss.open(lake, index_path=index).sync().version == 2),
    "scan": lambda lake, index: ss.open(lake, index_path=index).scan("n >= 0 AND s <> ''").to_table().num_rows,
    "fallback": lambda lake, index: ss.open(lake, index_path=index / "none", fallback="list").scan().count(),
    "verify": lambda lake, index: 2 * FILES * (ss.open(lake, index_path=index).verify(deep=True) == []),
    "bloom": lambda lake, index: _build(ss.open(lake, index_path=index), "bloom"),
    "secondary": lambda lake, index: _build(ss.open(lake, index_path=index), "secondary"),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_too_few_handles_are_an_error_and_lose_no_file(name: str, tmp_path: Path) -> None:
    lake, act = _lake(tmp_path / "lake"), ACTIONS[name]
    errors = []
    for free in (None, *few_of(range(9), 4)):  # the first imports what the action needs
        index = tmp_path / f"index{free}"
        if name != "create":
            table = ss.create(
                lake, index_path=index, files=sorted(lake.rglob("*.parquet"))[: 2 if name == "sync" else None]
            )
            if name in ("sync", "verify"):
                table.scan().count()
        with contextlib.nullcontext() if free is None else free_handles(free), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            if name == "fallback":
                warnings.simplefilter("ignore", UserWarning)
            try:
                assert act(lake, index) == 2 * FILES
                failed = False
            except ss.StorageError as error:
                failed = True
                errors.append(str(error))
        if not failed:
            assert ss.open(lake, index_path=index).scan().count() == 2 * FILES
        elif name == "create":
            with pytest.raises(ss.NotATableError):
                ss.open(lake, index_path=index)
        else:
            assert ss.open(lake, index_path=index).version == 1
    assert errors and all("Too many open files" in error for error in errors)


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake", 2)
    away = (lake / "day=0" / "f0.parquet").rename(tmp_path / "away.parquet")
    for name, target in (("day=0/f0", away), ("day=0/nowhere", tmp_path / "none"), ("day=1/loop", lake / "day=1/loop")):
        (lake / f"{name}.parquet").symlink_to(target.with_suffix(".parquet"))
    table = ss.create(lake)
    nowhere = {"day=0/nowhere.parquet", "day=1/loop.parquet"}
    assert {finding.path for finding in table.verify()} == nowhere
    assert all("a link that leads nowhere" in finding.message for finding in table.verify())
    away.unlink()
    assert set(table.sync().quarantined) == nowhere | {"day=0/f0.parquet"}
    with pytest.raises(ss.NotReadableError, match=r"f0\.parquet"):
        table.scan().to_table()
