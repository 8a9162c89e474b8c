"""Statistics created, refreshed and dropped while others commit: answers stay right, and new files are not covered."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import commit_rows, kept_paths, live_paths, make_file, stats_of
from stats_lakes import ROWS, check_answers, file_columns, index_row, once, stats_lake, stored_files


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("meanwhile", ["commit", "removal", "commit and removal"])
def test_files_committed_while_statistics_are_built_wait_for_a_refresh(tmp_path: Path, meanwhile: str) -> None:
    table = stats_lake(tmp_path)
    late: list[str] = []

    def others_commit() -> None:
        other = ss.open(tmp_path)
        if "commit" in meanwhile:
            late.extend(commit_rows(other, file_columns(70)))
        if "removal" in meanwhile:
            with other.transaction() as tx:
                tx.remove(["1.parquet", "3.parquet"])

    table.create_index("y", kind="stats", progress=once(others_commit))
    assert table.version == 3 + ("and" in meanwhile)
    for fresh in (table, ss.open(tmp_path)):
        check_answers(fresh, tmp_path)
        assert kept_paths(fresh, "y = 5000") == late  # not covered, so it may match
        found = index_row(fresh, "y")
        assert found["files_total"] - found["files_covered"] == len(late)
    version = table.version
    table.refresh_index("y", kind="stats")
    assert table.version == version + 1  # if files were only removed, the coverage did not state that none is missing
    table.refresh_index("y", kind="stats")
    assert table.version == version + 1
    for fresh in (table, ss.open(tmp_path)):
        check_answers(fresh, tmp_path)
        assert kept_paths(fresh, "y = 5000") == []
        assert index_row(fresh, "y")["files_covered"] == index_row(fresh, "y")["files_total"] == len(live_paths(fresh))


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("how", ["written", "attached", "declared"])
def test_what_a_transaction_adds_that_began_before_the_index(tmp_path: Path, how: str, partitioned: bool) -> None:
    folder = "p=1/" if partitioned else ""
    for number in (0, 1):
        make_file(tmp_path, f"{folder}{number}.parquet", file_columns(number))
    make_file(tmp_path, "p=2/9.parquet" if partitioned else "9.parquet", file_columns(9))
    table = ss.create(tmp_path, columns=["x"])
    given = {"path": f"{folder}late", "size_bytes": 1, "row_count": ROWS, **stats_of(x=(700, 707, 0), y=(293, 300, 0))}
    with ss.open(tmp_path).transaction() as tx:
        if how == "written":
            rows = pa.table(file_columns(70))
            tx.write(rows.append_column("p", pa.array([1] * ROWS, pa.int32())) if partitioned else rows)
        elif how == "attached":
            tx.add_files([make_file(tmp_path, f"{folder}late", file_columns(70))])
        else:
            given["size_bytes"] = (tmp_path / make_file(tmp_path, f"{folder}late", file_columns(70))).stat().st_size
            tx.add_files(pa.Table.from_pylist([given]))
        table.create_index("y", kind="stats")
    fresh = ss.open(tmp_path)
    (late,) = set(live_paths(fresh)) - set(live_paths(table))
    check_answers(fresh, tmp_path)
    # Statistics of y were not computed for written and attached files, so they wait; declared files have them.
    assert kept_paths(fresh, "y = 299") == [late]
    assert kept_paths(fresh, "y = 5000") == ([] if how == "declared" else [late])
    fresh.refresh_index("y", kind="stats")
    check_answers(fresh, tmp_path)
    assert kept_paths(fresh, "y = 5000") == [] and kept_paths(fresh, "y = 299") == [late]
    assert index_row(fresh, "y")["files_covered"] == 4


def test_one_of_two_builds_of_one_index_loses(tmp_path: Path) -> None:
    table = stats_lake(tmp_path)

    rival = ss.open(tmp_path)
    before = stored_files(tmp_path)
    with pytest.raises(ss.CommitConflictError, match="another writer created"):
        table.create_index("y", kind="stats", progress=once(lambda: rival.create_index("y", kind="stats")))
    fresh = ss.open(tmp_path)
    assert fresh.version == 2 and kept_paths(fresh, "y = 1000") == ["0.parquet"]
    assert len(stored_files(tmp_path)) == len(before) + 3  # no file of the one that lost remains


def test_an_index_dropped_while_it_is_refreshed(tmp_path: Path) -> None:
    table = stats_lake(tmp_path)
    table.create_index("y", kind="stats", maintain="refresh")
    commit_rows(table, file_columns(70))
    rival = ss.open(tmp_path)
    with pytest.raises(ss.CommitConflictError, match="dropped"):
        table.refresh_index("y", kind="stats", progress=once(lambda: rival.drop_index("y", kind="stats")))
    check_answers(ss.open(tmp_path), tmp_path)


def test_two_indexes_that_lack_different_files_are_used_leaf_by_leaf(tmp_path: Path) -> None:
    table = stats_lake(tmp_path, columns=[])
    table.create_index("x", kind="stats", maintain="refresh")
    (first,) = commit_rows(table, file_columns(70))  # which x lacks
    table.create_index("y", kind="stats", maintain="refresh")
    (second,) = commit_rows(table, file_columns(80))  # which both lack
    table.refresh_index("x", kind="stats")
    (third,) = commit_rows(table, file_columns(90))  # which both lack
    covered = {name: index_row(table, name)["files_covered"] for name in "xy"}
    assert covered == {"x": 6, "y": 5} and index_row(table, "x")["files_total"] == 7
    expected = {  # x covers all but the third, y all but the second and the third
        "x = 701": [first, third],
        "y = 299": [first, second, third],
        "x = 801 AND y = 199": [second, third],
        "x = 701 AND y = 199": [third],
        "x = 801 AND y = 299": [second, third],
        "x = 11 OR y = 989": ["1.parquet", second, third],
        "x = 701 OR y = 1000": ["0.parquet", first, second, third],
        "NOT (x < 800 OR y > 200)": [second, third],
        "NOT (x >= 10 AND y <= 990)": ["0.parquet", second, third],
        "x = 5000 AND (y = 5000 OR s = 'no')": [third],
        "x < y": sorted(live_paths(table)),  # a comparison of two columns prunes nothing
    }
    for fresh in (table, ss.open(tmp_path)):
        for where, kept in expected.items():
            assert kept_paths(fresh, where) == sorted(kept), where
        check_answers(fresh, tmp_path)
