"""Delta and Iceberg logs, checkpoints, manifests and deletion vectors that are damaged or crafted: an error of ours, or
the rows that the log's own library reads. Nothing else comes out, nothing hangs, nothing is run, and the process lives.

Some by default; with SKIPSTONE_TEST=all 600.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_logs
import log_lakes
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from library_versions import needs
from loaded_modules import run_code

pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
from deltalake import DeltaTable, write_deltalake

PROGRAM = "import hostile_log_program, sys; hostile_log_program.main(*map(int, sys.argv[1:]))"
AT_ONCE = 40


# Bounds of deletes that are no text; deletes of rows that are null; a path of a device, in an error of no table.
FOUND = (2762000091, 2762000189, 2762000327)


@needs("deltalake", 1, 4, what="writing deletion vectors")
@pytest.mark.parametrize("first", range(0, examples(5, 600), AT_ONCE))
def test_hostile_logs_are_refused_or_read_as_their_library_reads_them(first: int) -> None:
    count, found = min(AT_ONCE, examples(5, 600) - first), FOUND if not first else ()
    run = run_code(PROGRAM, first, count, *found, timeout_s=1800)
    lines = run.stdout.splitlines()
    assert run.returncode == 0, (lines[-1:], run.stderr[-500:])
    assert [line for line in lines if not line.startswith("#")] == []
    assert len(lines) == count + len(found)


# -- one lie each ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def iceberg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_logs.make(tmp_path_factory.mktemp("hostile") / "iceberg", "iceberg")


def test_the_properties_of_an_iceberg_table_run_nothing(iceberg: Path, tmp_path: Path) -> None:
    """pyiceberg would import and call what `py-io-impl` names, with the other properties."""
    newest, mark = log_lakes.newest_metadata(iceberg), tmp_path / "mark"
    whole = newest.read_bytes()
    metadata = json.loads(whole)
    metadata["properties"] = {"/bin/sh": "1", "-c": "1", f"touch {mark}": "1", "py-io-impl": "subprocess.Popen"}
    newest.write_text(json.dumps(metadata))
    try:
        table = ss.create(iceberg, source="iceberg", index_path=tmp_path / "index")
        assert table.scan().count() == 23
    finally:
        newest.write_bytes(whole)
    assert not mark.exists()


def _first_manifest(lake: Path) -> Path:
    return min((lake / "metadata").glob("*-m0.avro"))


Parts = tuple[dict[str, bytes], int, bytes]  # an Avro file's metadata, and the count and the bytes of its block


def _with(change: Callable[..., Parts], data: bytes) -> bytes:
    metadata, sync, count, block = hostile_logs.container(data)
    metadata, count, block = change({**metadata, "avro.codec": b"null"}, count, block)
    return hostile_logs.put_container(metadata, sync, count, block, None)


LIES: dict[str, tuple[Callable[..., Parts], str]] = {
    "its first block alone": (lambda *parts: parts, "where the list of manifests says"),
    "no records": (lambda metadata, count, block: (metadata, 0, block), "where the list of manifests says"),
}


@pytest.mark.parametrize("lie", list(LIES))
def test_a_manifest_that_lies_loses_no_file(iceberg: Path, tmp_path: Path, lie: str) -> None:
    change, said = LIES[lie]
    manifest = _first_manifest(iceberg)
    whole = manifest.read_bytes()
    manifest.write_bytes(_with(change, whole))
    try:
        with pytest.raises(ss.SkipstoneError, match=said) as raised:
            ss.create(iceberg, source="iceberg", index_path=tmp_path / "index").scan().to_table()
        assert manifest.name in str(raised.value)
    finally:
        manifest.write_bytes(whole)


@pytest.mark.parametrize(
    ("whole", "harmed"), [(rb"\.parquet\x00\x02", b".parquez\x00\x02"), (rb"PARQUET\x02\x02[xy]", b"PARQUET\x02\x02z")]
)
def test_deletes_apply_though_their_bounds_or_their_partition_cannot_be(
    iceberg: Path, tmp_path: Path, whole: bytes, harmed: bytes
) -> None:
    """A lower bound above the upper one; the partition of no file. A deleted row must not return."""
    (manifest,) = (iceberg / "metadata").glob("deletes-*.avro")
    before = manifest.read_bytes()

    def change(metadata: dict[str, bytes], count: int, block: bytes) -> Parts:
        assert len(re.findall(whole, block)) == 1
        return metadata, count, re.sub(whole, harmed, block)

    manifest.write_bytes(_with(change, before))
    try:
        table = ss.create(iceberg, source="iceberg", index_path=tmp_path / "index")
        assert table.scan().count() == table.scan().to_table().num_rows == 23
    finally:
        manifest.write_bytes(before)


@pytest.mark.parametrize("hint", ["9" * 5000, "\u0663", "\0", "x" * 5000, "../" * 40 + "etc/passwd", "", "-1", "1e9"])
def test_a_version_hint_of_any_content_is_refused(tmp_path: Path, hint: str) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata/version-hint.text").write_text(hint)
    with pytest.raises(ss.SkipstoneError):
        ss.create(tmp_path, source="iceberg")


# -- commits of a Delta log that hold what no writer writes -----------------------------------------------------------

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
    "a size below 0": _add(size=-(2**63)),
    "sizes whose sum is beyond 64 bits": _add(size=2**63 - 1),
    "rows below 0": _add(stats=json.dumps({"numRecords": -5})),
    "a size beyond 64 bits": _add(size=10**30),
    "a size without end": '{"add": {"path": "x.parquet", "partitionValues": {}, "size": 1e999}}',
    "rows beyond 64 bits": _add(stats=json.dumps({"numRecords": 10**30})),
    "statistics of another type": _add(stats=[1]),
    "partition values of another type": _add(partitionValues=[1]),
    "a deletion vector of another type": _add(deletionVector="x"),
    "a deletion vector of nothing": _add(deletionVector={}),
}


@pytest.mark.some_cases(6)
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
    assert {Path(path).name for path in ss.open(tmp_path).files()["path"].to_pylist()} == live


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
