"""Tables that a released version wrote, byte for byte: every later version gives the same answers (LAYOUT.md)."""

from __future__ import annotations

import warnings

import golden_tables
import pytest
import second_reader
import skipstone as ss

NEEDS = {"delta": "deltalake", "iceberg": "pyiceberg", "hudi": "hudi"}


def restored_answers(name: str, *, again: bool = False) -> dict:
    """The answers of a restored table, and with `again` those after `optimize` has rewritten its index."""
    recorded = golden_tables.recorded(name)
    with golden_tables.place(name) as root, warnings.catch_warnings():
        warnings.simplefilter("ignore", ss.SkipstoneWarning)
        golden_tables.restore(name, root)
        location = root / recorded["location"]
        if again:
            with ss.open(location) as table:
                table.optimize()
        return golden_tables.answers(location, recorded["queries"], newest_alone=again)


def check(found: dict, expected: dict) -> None:
    """The same rows; no more files or row groups are planned than then."""
    assert found.keys() == expected.keys()
    for query, answer in expected.items():
        assert found[query]["rows"] == answer["rows"], query
        assert all(now <= then for now, then in zip(found[query]["planned"], answer["planned"], strict=True)), query


@pytest.mark.parametrize("name", golden_tables.names())
def test_a_golden_table_answers_as_it_did(name: str) -> None:
    pytest.importorskip(NEEDS.get(name.partition("-")[0], "skipstone"))
    expected = golden_tables.recorded(name)
    found = restored_answers(name)
    for what in ("actions", "savepoints", "indexes", "verify"):
        assert found[what] == expected[what]
    for version, answers in expected["versions"].items():
        if answers == "cleaned":
            assert found["versions"][version] == "cleaned"
        else:
            check(found["versions"][version], answers)
    newest = max(expected["versions"], key=int)
    again = restored_answers(name, again=True)
    (answers,) = again["versions"].values()
    check(answers, expected["versions"][newest])


def test_golden_tables_are_never_created_again() -> None:
    recorded = dict(reversed(line.split()) for line in golden_tables.SUMS.read_text().splitlines())
    assert recorded == {f"{name}.tar.gz": golden_tables.checksum(name) for name in golden_tables.names()}


@pytest.mark.parametrize("name", ["changes-0.2.0", "hive-0.2.0", "moved-0.2.0", "plain-0.2.0"])
def test_a_reader_that_was_written_from_the_documents_finds_the_files(name: str) -> None:
    with golden_tables.place(name) as root:
        golden_tables.restore(name, root)
        location = root / "table"
        instant = second_reader.newest_instant(location / ".skipstone")
        found = second_reader.live_files(location / ".skipstone", instant)
        files = ss.open(location, on_stale="ignore").files()
        assert found == dict(zip(files.column("path").to_pylist(), files.column("row_count").to_pylist(), strict=True))
        assert sum(found.values()) == instant["totals"]["rows"]
