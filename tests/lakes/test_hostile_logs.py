"""Delta and Iceberg logs, checkpoints, manifests and deletion vectors that are damaged or crafted: an error of ours, or
the rows that the log's own library reads. Nothing else comes out, nothing hangs, nothing is run, and the process lives.

Some by default; with SKIPSTONE_TEST=all 600.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hostile_logs
import log_lakes
import pytest
import skipstone as ss
from example_counts import examples
from library_versions import needs

pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')

PROGRAM = Path(hostile_logs.__file__).with_name("hostile_log_program.py")
AT_ONCE = 40


# Bounds of deletes that are no text; deletes of rows that are null; a path of a device, in an error of no table.
FOUND = (2762000091, 2762000189, 2762000327)


@needs("deltalake", 1, 4, what="writing deletion vectors")
@pytest.mark.parametrize("first", [*range(0, examples(8, 600), AT_ONCE), *FOUND])
def test_hostile_logs_are_refused_or_read_as_their_library_reads_them(first: int) -> None:
    count = 1 if first in FOUND else min(AT_ONCE, examples(8, 600) - first)
    run = subprocess.run(
        [sys.executable, PROGRAM, str(first), str(count)], capture_output=True, text=True, timeout=1800, check=False
    )
    lines = run.stdout.splitlines()
    assert run.returncode == 0, (lines[-1:], run.stderr[-500:])
    assert [line for line in lines if not line.startswith("#")] == []
    assert len(lines) == count


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


@pytest.mark.parametrize("hint", ["9" * 5000, "\u0663", "\0", "x" * 5000, "../" * 40 + "etc/passwd", "", "-1", "1e9"])
def test_a_version_hint_of_any_content_is_refused(tmp_path: Path, hint: str) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata/version-hint.text").write_text(hint)
    with pytest.raises(ss.SkipstoneError):
        ss.create(tmp_path, source="iceberg")
