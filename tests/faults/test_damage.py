"""Damage, and files that change under us: never another answer, and each error is one of ours and says where."""

from __future__ import annotations

import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import SEED, is_thorough
from faults import flipped, index_files


def _lake(root: Path, files: int = 2) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        rows = {"a": [10 * number + i for i in range(6)], "s": ["x", "y", None, "z", "w", f"v{number}"]}
        pq.write_table(pa.table(rows), root / f"f{number}.parquet", row_group_size=2)
    return root


def _write(table: ss.Table, data: object) -> None:
    with table.transaction() as tx:
        tx.write(data)


# -- files that change under us ---------------------------------------------------------------------------------------


def test_files_that_are_gone_or_overwritten_are_never_read_as_what_they_were(tmp_path: Path) -> None:
    table = ss.create(_lake(tmp_path / "lake"))
    lake = tmp_path / "lake"
    pq.write_table(pa.table({"a": [100] * 6, "s": ["q"] * 6}), lake / "f1.parquet")
    with pytest.raises(ss.NotReadableError, match=r"f1\.parquet") as caught:
        table.scan("a > 8").to_table()
    assert caught.value.paths == ["f1.parquet"]
    with pytest.raises(ss.NotReadableError, match="sync"):
        table.scan("a = 13 AND s = 'z'").count()
    assert table.scan("a < 9").to_table().num_rows == 6
    (lake / "f0.parquet").unlink()
    with pytest.raises(ss.NotReadableError, match="missing"):
        table.scan("a < 9").to_table()
    with pytest.raises(ss.NotReadableError):
        list(table.scan("a < 9").to_batches())
    assert sorted(f.kind for f in table.verify()) == ["missing", "overwritten"]
    with pytest.warns(UserWarning, match="overwritten"):
        table.create_index("a", kind="bloom")
    assert table.indexes().to_pylist()[-1]["files_covered"] == 0


# -- an index that is damaged -----------------------------------------------------------------------------------------


def _indexed(root: Path) -> ss.Table:
    table = ss.create(_lake(root))
    table.create_index("a", kind="bloom")
    _write(table, pa.table({"a": [30, 31], "s": ["t", None]}))
    return table


FLIPS = 100 if is_thorough() else 3  # of a file
QUERIES = {"a = 3": 1, "a >= 10": 8, "a = 30 OR s = 'z'": 3, "a = 1000": 0, "NOT (a < 31)": 1}


def _answers(root: Path, strict: bool = False) -> dict[str, int]:
    table = ss.open(root, strict=strict)
    table.handle.forget()  # the process keeps what it decoded of runs, which never change
    found = {where: table.scan(where).to_table().num_rows for where in QUERIES}
    assert {where: table.scan(where).count() for where in QUERIES} == found
    return found


@pytest.mark.parametrize("kind", ["instant", "hint", "manifest", "stats", "filter", "task"])
def test_a_flipped_bit_never_changes_an_answer(tmp_path: Path, kind: str) -> None:
    table = _indexed(tmp_path / "lake")
    raised = warned = 0
    for path in index_files(table)[kind]:
        size = path.stat().st_size
        step = max(1, size // FLIPS)
        for offset in sorted({*range(SEED % step, size, step), size - 1}):
            with flipped(path, offset, 1 << (SEED + 4) % 8), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    assert _answers(tmp_path / "lake") == QUERIES, (path, offset)
                except ss.SkipstoneError as error:
                    assert isinstance(error, ss.CorruptionError | ss.FormatVersionError), (path, offset, error)
                    assert kind in ("instant", "manifest"), (path, offset, error)
                    raised += 1
                warned += bool(caught)
    assert (raised > 0) == (kind in ("instant", "manifest"))
    assert (warned > 0) == (kind in ("stats", "filter", "task"))
