"""Many files that a commit removes are one table of columns; what two versions differ in."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.engine.commit.conflicts import check_unchanged
from skipstone.engine.state import COMPLETED

ROWS = st.dictionaries(
    st.integers(0, 5), st.tuples(st.sampled_from("ab"), st.sampled_from(["c", "d", None])), max_size=5
)
STATES = st.dictionaries(st.sampled_from("cd"), st.sampled_from(["inflight", "failed"]))


@given(ROWS, ROWS, STATES, STATES)
@settings(max_examples=examples(100))
def test_what_changed_is_what_differs_row_by_row(then: dict, later: dict, states: dict, states_now: dict) -> None:
    def contents(rows: dict, commits: dict) -> dict:
        return {number: (path, commits.get(commit, COMPLETED)) for number, (path, commit) in rows.items()}

    def snapshot(rows: dict, commits: dict) -> SimpleNamespace:
        ids = sorted(rows)
        columns = {name: pa.array([rows[n][i] for n in ids], pa.string()) for i, name in enumerate(("path", "commit"))}
        table = pa.table({"file_id": pa.array(ids, pa.uint64()), **columns})
        return SimpleNamespace(
            files=lambda ids, names: table, instant=SimpleNamespace(version=1, commit_states=commits)
        )

    before, now = contents(then, states), contents(later, states_now)
    # Of a file that changed, its present path; of one that was added or removed, its own.
    changed = sorted({{**before, **now}[number][0] for number, _ in before.items() ^ now.items()})
    if not changed:
        check_unchanged(snapshot(then, states), snapshot(later, states_now), None)
        return
    with pytest.raises(ss.CommitConflictError) as error:
        check_unchanged(snapshot(then, states), snapshot(later, states_now), None)
    assert error.value.paths == changed


def test_an_overwrite_holds_a_few_bytes_a_file(tmp_path) -> None:
    count = 20_000
    table = ss.create(tmp_path, schema=pa.schema([("k", pa.int64())]))
    with table.transaction() as tx:
        paths = [f"part-{number:08d}-6a0f0d51.parquet" for number in range(count)]
        tx.add_files(pa.table({"path": paths, "size_bytes": [1000] * count, "row_count": [1] * count}))
    table.files()
    tracemalloc.start()
    try:
        with table.transaction() as tx:
            before = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()
            tx.overwrite("all")
            held = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert table.files().num_rows == 0
    assert held < 64 * count  # 190 as a dict; the path of a file is 31 bytes
