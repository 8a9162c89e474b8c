"""Delta and Iceberg logs, checkpoints, manifests and deletion vectors that are damaged or crafted: a SkipstoneError, or
the rows that the log's own library reads. Nothing hangs, no code of a table is run, and the process does not end."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
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
@pytest.mark.parametrize("first", range(0, examples(5), AT_ONCE))
def test_hostile_logs_are_refused_or_read_as_their_library_reads_them(first: int) -> None:
    count, found = min(AT_ONCE, examples(5) - first), FOUND if not first else ()
    run = run_code(PROGRAM, first, count, *found, timeout_s=1800)
    lines = run.stdout.splitlines()
    assert run.returncode == 0, (lines[-1:], run.stderr[-500:])
    assert [line for line in lines if not line.startswith("#")] == []
    assert len(lines) == count + len(found)


# -- one wrong thing each ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def iceberg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_logs.make(tmp_path_factory.mktemp("hostile") / "iceberg", "iceberg")


@contextlib.contextmanager
def _replaced(file: Path, data: bytes) -> Iterator[None]:
    whole = file.read_bytes()
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(whole)


def test_the_properties_of_an_iceberg_table_run_nothing(iceberg: Path, tmp_path: Path) -> None:
    """pyiceberg would import and call what `py-io-impl` names, with the other properties."""
    newest, mark = log_lakes.newest_metadata(iceberg), tmp_path / "mark"
    metadata = json.loads(newest.read_bytes())
    metadata["properties"] = {"/bin/sh": "1", "-c": "1", f"touch {mark}": "1", "py-io-impl": "subprocess.Popen"}
    with _replaced(newest, json.dumps(metadata).encode()):
        assert ss.create(iceberg, source="iceberg", index_path=tmp_path / "index").scan().count() == 23
    assert not mark.exists()


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_manifest_with_fewer_records_loses_no_file(iceberg: Path, tmp_path: Path, is_empty: bool) -> None:
    """The list of manifests states how many files it has: no record is left, or those of the first block."""
    manifest = min((iceberg / "metadata").glob("*-m0.avro"))
    metadata, sync, count, block = hostile_logs.container(manifest.read_bytes())
    metadata["avro.codec"] = b"null"
    data = hostile_logs.put_container(metadata, sync, 0 if is_empty else count, block)
    message = "where the list of manifests says"
    with _replaced(manifest, data), pytest.raises(ss.SkipstoneError, match=message) as raised:
        ss.create(iceberg, source="iceberg", index_path=tmp_path / "index").scan().to_table()
    assert manifest.name in str(raised.value)


@pytest.mark.parametrize(
    ("whole", "harmed"), [(rb"\.parquet\x00\x02", b".parquez\x00\x02"), (rb"PARQUET\x02\x02[xy]", b"PARQUET\x02\x02z")]
)
def test_deletes_apply_though_their_bounds_or_their_partition_cannot_be(
    iceberg: Path, tmp_path: Path, whole: bytes, harmed: bytes
) -> None:
    """A lower bound above the upper one; the partition of no file. A deleted row must not return."""
    (manifest,) = (iceberg / "metadata").glob("deletes-*.avro")
    metadata, sync, count, block = hostile_logs.container(manifest.read_bytes())
    metadata["avro.codec"] = b"null"
    assert len(re.findall(whole, block)) == 1
    with _replaced(manifest, hostile_logs.put_container(metadata, sync, count, re.sub(whole, harmed, block))):
        table = ss.create(iceberg, source="iceberg", index_path=tmp_path / "index")
        assert table.scan().count() == table.scan().to_table().num_rows == 23


@pytest.mark.parametrize("hint", ["9" * 5000, "\u0663", "\0", "x" * 5000, "../" * 40 + "etc/passwd", "", "-1", "1e9"])
def test_a_version_hint_of_any_content_is_refused(tmp_path: Path, hint: str) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata/version-hint.text").write_text(hint)
    with pytest.raises(ss.SkipstoneError):
        ss.create(tmp_path, source="iceberg")


# -- commits of a Delta log that no writer writes -----------------------------------------------------------

ADD = {"path": "x.parquet", "partitionValues": {}, "size": 10, "modificationTime": 1, "dataChange": True}
ADD["stats"] = '{"numRecords": 1}'


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
