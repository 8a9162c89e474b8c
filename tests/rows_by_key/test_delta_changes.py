"""delete, update and upsert of a Delta table commit through deltalake, and change exactly the right rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from library_versions import has
from log_lakes import delete_rows, multiset, paths_of

deltalake = pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", pa.string()), ("day", pa.int32())])
ROWS = [{"id": i, "v": i * 10, "s": f"s{i}", "day": i % 2} for i in range(8)]
can_replace = pytest.mark.skipif(not has("deltalake", 1, 6), reason="deltalake 1.6 removes files by name")


def _rows(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _made(folder: Path, partitioning: tuple[str, ...] = ("day",), rows: list[dict[str, Any]] = ROWS) -> Path:
    for start in range(0, len(rows), 4):
        some = _rows(rows[start : start + 4])
        deltalake.write_deltalake(folder, some, mode="append", partition_by=list(partitioning) or None)
    return folder


def _theirs(folder: Path) -> pa.Table:
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(folder))
    return pa.table(builder.execute("SELECT * FROM t").read_all())


def _check(folder: Path, table: ss.Table, rows: list[dict[str, Any]]) -> None:
    """deltalake, this handle and a new one read these rows, and an index that exists covers every file."""
    expected = multiset(_rows(rows))
    assert multiset(_theirs(folder).cast(SCHEMA)) == expected
    for handle in (table, ss.open(folder)):
        assert multiset(handle.scan().to_table()) == expected
    assert table.verify(deep=True) == []
    file_count = table.files().num_rows
    assert all(covered == file_count for covered in table.indexes()["files_covered"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> ss.Table:
    table = ss.create(_made(tmp_path / "t"))
    table.create_index("id", kind="secondary")
    return table


@can_replace
def test_the_verbs_commit_a_version(lake: ss.Table, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    foreseen = lake.delete("id IN (1, 5)", dry_run=True)
    done = lake.delete("id IN (1, 5)")
    assert (done.rows_deleted, done.files) == (2, foreseen.files) and done.files_rewritten == 2
    rows = [row for row in ROWS if row["id"] not in (1, 5)]
    _check(folder, lake, rows)
    assert lake.update({"s": "'new'", "day": "7"}, "id >= 6").rows_updated == 2
    rows = [{**row, "s": "new", "day": 7} if row["id"] >= 6 else row for row in rows]
    _check(folder, lake, rows)
    done = lake.upsert(pa.table({"id": [2, 100], "v": [-1, -2]}), on="id")
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
    rows = [{**row, "v": -1} if row["id"] == 2 else row for row in rows]
    _check(folder, lake, [*rows, {"id": 100, "v": -2, "s": None, "day": None}])
    version = deltalake.DeltaTable(folder).version()
    assert lake.delete("id = 77").rows_deleted == 0 and deltalake.DeltaTable(folder).version() == version
    actions = pa.table(deltalake.DeltaTable(folder).get_add_actions(flatten=True))
    assert set(actions["min.id"].to_pylist()) == {0, 2, 3, 6, 7, 100} or actions["min.id"].null_count == 0
    assert not list(folder.glob("skipstone-*/_delta_log/*"))


@can_replace
def test_a_retry_with_the_key_changes_nothing(lake: ss.Table, tmp_path: Path) -> None:
    first = lake.update({"v": "v + 1"}, "true", key="job 7")
    again = ss.open(tmp_path / "t").update({"v": "v + 1"}, "true", key="job 7")
    assert (first.rows_updated, again.rows_updated) == (8, 0)
    _check(tmp_path / "t", lake, [{**row, "v": row["v"] + 1} for row in ROWS])


def _data_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*.parquet") if ".skipstone" not in path.parts}


@can_replace
@pytest.mark.parametrize("other", ["append", "delete", "update", "ours", "properties"])
def test_another_writer_is_a_conflict(lake: ss.Table, tmp_path: Path, other: str, monkeypatch: Any) -> None:
    """Between the plan and the commit: nothing of this change is committed, and nothing of the other is lost."""
    from skipstone.engine.rows_by_key.delta import DeltaExchange

    folder, real, rows = tmp_path / "t", DeltaExchange._commit, list(ROWS)

    def meanwhile(self: Any) -> None:
        monkeypatch.setattr(DeltaExchange, "_commit", real)
        if other == "append":
            rows.append({"id": 50, "v": 1, "s": "x", "day": 0})
            deltalake.write_deltalake(folder, _rows(rows[-1:]), mode="append")
        elif other == "delete":
            deltalake.DeltaTable(folder).delete("id = 2")
            rows.remove(ROWS[2])
        elif other == "update":
            deltalake.DeltaTable(folder).update(updates={"v": "99"}, predicate="id = 2")
            rows[2] = {**rows[2], "v": 99}
        elif other == "ours":
            ss.open(folder).update({"v": "99"}, "id = 2")
            rows[2] = {**rows[2], "v": 99}
        else:
            deltalake.DeltaTable(folder).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
        before.update(_data_files(folder))
        real(self)

    before: set[Path] = set()
    monkeypatch.setattr(DeltaExchange, "_commit", meanwhile)
    with pytest.raises(ss.CommitConflictError):
        lake.upsert(pa.table({"id": [2, 50], "v": [1000, 1000]}), on="id")
    lake.sync(refresh=True)
    _check(folder, lake, rows)
    assert {folder / path for path in paths_of(folder)} <= _data_files(folder) < before  # what this wrote is removed


@can_replace
def test_an_error_leaves_no_files(lake: ss.Table, tmp_path: Path) -> None:
    before = _data_files(tmp_path)

    def stop(step: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.delete("id IN (1, 5)", progress=stop)
    with pytest.raises(ss.PredicateError):
        lake.update({"day": "CASE WHEN id = 5 THEN 3000000000 ELSE 1 END"}, "true")
    assert _data_files(tmp_path) == before


@can_replace
def test_a_file_with_a_deletion_vector(tmp_path: Path) -> None:
    """deltalake cannot remove it by its path alone; other files can be changed, and its deleted rows stay deleted."""
    folder = _made(tmp_path / "t", ())
    deltalake.DeltaTable(folder).alter.add_feature(
        deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    path = paths_of(folder)[0]
    delete_rows(folder, path, [0])
    table = ss.create(folder)
    left = table.scan().to_table().to_pylist()
    deleted = next(row for row in ROWS if row not in left)
    near, far = (next(r for r in left if (r["id"] < 4) == is_low) for is_low in (deleted["id"] < 4, deleted["id"] >= 4))
    with pytest.raises(ss.InvalidArgumentError, match="deletion vector"):
        table.delete(f"id = {near['id']}")
    assert table.delete(f"id = {far['id']}").rows_deleted == 1
    assert multiset(table.scan().to_table()) == multiset(_rows([row for row in left if row != far]))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"delta.enableChangeDataFeed": "true"}, "enableChangeDataFeed"),
        ({"delta.appendOnly": "true"}, "appendOnly"),
        ({"delta.constraints.positive": "v >= 0"}, "constraints"),
    ],
)
@can_replace
def test_refused(tmp_path: Path, properties: dict[str, str], message: str) -> None:
    folder = _made(tmp_path / "t")
    table = deltalake.DeltaTable(folder)
    if "delta.constraints.positive" in properties:
        table.alter.add_constraint({"positive": "v >= 0"})
    else:
        table.alter.set_table_properties(properties)
    with pytest.raises(ss.InvalidArgumentError, match=f"(?s){message}.*deltalake.*affected_files"):
        ss.create(folder).delete("id = 1")
    assert multiset(_theirs(folder).cast(SCHEMA)) == multiset(_rows(ROWS))


@can_replace
def test_a_path_that_deltalake_encodes_is_refused(tmp_path: Path) -> None:
    folder = _made(tmp_path / "t", ("s",), [{"id": 1, "v": 1, "s": "a b", "day": 0}])
    table = ss.create(folder)
    with pytest.raises(ss.InvalidArgumentError, match="otherwise"):
        table.delete("id = 1")
    table.upsert(_rows([{"id": 2, "v": 2, "s": "c d%/", "day": 0}]), on="id")  # new files may have any name
    assert sorted(_theirs(folder)["id"].to_pylist()) == [1, 2]
    assert sorted(table.scan().to_table()["s"].to_pylist()) == ["a b", "c d%/"]


@pytest.mark.skipif(has("deltalake", 1, 6), reason="deltalake 1.6 removes files by name")
def test_an_old_deltalake_is_refused(lake: ss.Table) -> None:
    with pytest.raises(ss.InvalidArgumentError, match=r"1\.6.*DeltaTable\.delete.*affected_files"):
        lake.delete("id = 1")


@can_replace
@settings(max_examples=examples(4, 100), deadline=None)
@given(seed=st.integers(0, 2**32), partitioning=st.sampled_from([(), ("day",), ("s", "day")]))
def test_rows_are_those_of_a_list(
    seed: int, partitioning: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("delta") / "t"

    def row(id: int) -> dict[str, Any]:
        return {"id": id, "v": rng.choice([None, 1, 2]), "s": rng.choice([None, "a", "b"]), "day": rng.choice([0, 1])}

    rows = [row(i) for i in range(12)]
    table = ss.create(_made(folder, partitioning, rows))
    if rng.random() < 0.7:
        table.create_index("id", kind="secondary")
    for _ in range(3):
        ids = rng.sample(range(16), 3)
        verb = rng.choice(["delete", "update", "upsert"])
        if verb == "delete":
            table.delete(f"id IN ({ids[0]}, {ids[1]}) OR v = 2")
            rows = [r for r in rows if r["id"] not in ids[:2] and r["v"] != 2]
        elif verb == "update":
            table.update({"day": "1 - day", "s": "'u'"}, f"id < {ids[0]}")
            rows = [{**r, "day": 1 - r["day"], "s": "u"} if r["id"] < ids[0] else r for r in rows]
        else:
            new = [row(i) for i in ids]
            table.upsert(_rows(new), on="id")
            rows = [r for r in rows if r["id"] not in ids] + new
        if rng.random() < 0.3:  # another engine appends, which the next verb has to see
            rows.append(row(rng.randrange(100, 10**9)))
            deltalake.write_deltalake(folder, _rows(rows[-1:]), mode="append")
        table.sync(refresh=True)
        _check(folder, table, rows)
