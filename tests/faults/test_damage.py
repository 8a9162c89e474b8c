"""Damaged index files: never a wrong answer, and each error is a Skipstone error that names the file."""

from __future__ import annotations

import warnings
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import SEED, examples
from faults import flipped, index_files
from lake_strategies import make_file, write_rows


def _indexed(root: Path) -> ss.Table:
    for number in range(2):
        rows = {"a": [10 * number + i for i in range(6)], "s": ["x", "y", None, "z", "w", f"v{number}"]}
        make_file(root, f"f{number}.parquet", rows, row_group_size=2)
    table = ss.create(root)
    table.create_index("a", kind="bloom")
    write_rows(table, pa.table({"a": [30, 31], "s": ["t", None]}))
    return table


FLIPS = examples(3)  # of a file
QUERIES = {"a = 3": 1, "a >= 10": 8, "a = 30 OR s = 'z'": 3, "a = 1000": 0, "NOT (a < 31)": 1}


def _answers(root: Path, strict: bool = False) -> dict[str, int]:
    table = ss.open(root, strict=strict)
    table.handle.forget()  # the process keeps decoded runs
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
