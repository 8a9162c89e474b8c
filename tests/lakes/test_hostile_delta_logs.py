"""Commits of a Delta log that hold what no writer writes: an error of ours, or the table as deltalake reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import skipstone as ss
from deltalake import DeltaTable, write_deltalake

ADD = {
    "path": "x.parquet",
    "partitionValues": {},
    "size": 10,
    "modificationTime": 1,
    "dataChange": True,
    "stats": '{"numRecords": 1}',
}


def _add(**other: Any) -> str:
    return json.dumps({"add": ADD | other})


COMMITS = {
    "no JSON": "\x00\xff",
    "a number": "7",
    "a path of another type": _add(path=7),
    "a size of another type": _add(size="large"),
    "a size beyond 64 bits": _add(size=10**30),
    "a size without end": '{"add": {"path": "x.parquet", "partitionValues": {}, "size": 1e999}}',
    "rows beyond 64 bits": _add(stats=json.dumps({"numRecords": 10**30})),
    "statistics of another type": _add(stats=[1]),
    "partition values of another type": _add(partitionValues=[1]),
    "a deletion vector of another type": _add(deletionVector="x"),
    "a deletion vector of nothing": _add(deletionVector={}),
}


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("harm", list(COMMITS))
def test_a_hostile_commit_is_an_error_of_ours_or_read_as_deltalake_reads_it(tmp_path: Path, harm: str) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 2, 3]}))
    table = ss.create(tmp_path, source="delta")
    log = tmp_path / "_delta_log"
    (log / "00000000000000000001.json").write_text(COMMITS[harm], encoding="latin-1")
    try:
        table.sync()
    except ss.SkipstoneError as error:
        assert str(tmp_path) in str(error) or "x.parquet" in str(error)
        return
    live = {Path(path).name for path in DeltaTable(tmp_path).file_uris()}
    assert {Path(path).name for path in table.files()["path"].to_pylist()} == live


@pytest.mark.parametrize("hint", ["{}", "7", '{"version": "x"}', '{"version": 1e999}', '{"version": -5}', "\xff"])
def test_a_checkpoint_hint_of_any_content_ends_in_no_other_error(tmp_path: Path, hint: str) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 2, 3]}))
    table = ss.create(tmp_path, source="delta")
    (tmp_path / "_delta_log/_last_checkpoint").write_text(hint, encoding="latin-1")
    write_deltalake(tmp_path, pa.table({"id": [4]}), mode="append")
    try:
        table.sync()
    except ss.SkipstoneError as error:
        assert str(tmp_path) in str(error)
        return
    assert table.scan().count() == 4
