"""The rules that keep answers right (docs: soundness), each with the case that breaks without it.

Rules that need what this version does not have (external logs, sync, rollback, restore, clean, savepoints, aggregates,
secondary indexes, `read_optimized`, `prune_partition`) are tested where that is.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import pickle
import time
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from faults import flipped, index_files
from skipstone import col
from skipstone.engine.scan.fine import row_groups_of
from skipstone.engine.scan.rows import read_matches
from skipstone.engine.storage import Counted, local, open_storage

NAN = math.nan


def _file(root: Path, path: str, columns: dict, **options) -> str:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), root / path, **options)
    return path


def _commit(table: ss.Table, rows: dict) -> list[str]:
    before = set(_paths(table))
    with table.transaction() as tx:
        tx.write(pa.table(rows))
    return sorted(set(_paths(table)) - before)


def _paths(table: ss.Table) -> list[str]:
    return table.files().column("path").to_pylist()


def _told(path: str, row_count: int = 10, **more) -> dict:
    """One file that is only told of."""
    return {"path": path, "size_bytes": 1000, "row_count": row_count, **more}


def _add_told(table: ss.Table, *files: dict) -> None:
    names = list(dict.fromkeys(name for file in files for name in file))
    rows = [{name: file.get(name) for name in names} for file in files]  # from_pylist looks at the first row's names
    with table.transaction() as tx:
        tx.add_files(pa.Table.from_pylist(rows))


def _told_table(root: Path, kind: pa.DataType | None = None) -> ss.Table:
    return ss.create(root, schema=pa.schema([("a", kind or pa.int64()), ("b", pa.int64())]))


def _kept(table: ss.Table, where: object) -> list[str]:
    return sorted(table.scan(where).files().column("path").to_pylist())


# -- identity and versions ------------------------------------------------------------------------------------------------


def test_rule_01_a_handle_pins_its_version_until_it_acts_or_refreshes(tmp_path: Path) -> None:
    _file(tmp_path, "f.parquet", {"a": [1]})
    mine = ss.create(tmp_path)
    other = ss.open(tmp_path)
    plan = mine.scan()
    _commit(other, {"a": [2]})
    assert (mine.version, mine.scan().count(), plan.count()) == (1, 1, 1)
    assert plan.to_table().num_rows == 1
    assert mine.refresh() is mine and mine.version == 2 and mine.scan().count() == 2
    _commit(other, {"a": [3]})
    _commit(mine, {"a": [4]})
    assert mine.version == 4 and sorted(mine.scan().to_table().column("a").to_pylist()) == [1, 2, 3, 4]
    times = mine.history().column("time").to_pylist()
    for pinned in (ss.open(tmp_path, version=2), ss.open(tmp_path, as_of=times[1])):
        assert pinned.scan().count() == 2
        for act in (pinned.transaction, lambda p=pinned: p.create_index("a", kind="bloom")):
            with pytest.raises(ss.InvalidArgumentError, match="version 2"):
                act()
        assert pinned.refresh().version == 4
        pinned.transaction()


def test_rule_01_an_action_never_moves_a_handle_back(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    for key in ("one", "two", "one"):
        with table.transaction(key=key) as tx:
            tx.write(pa.table({"a": [1]}))
    assert table.version == ss.open(tmp_path).version == 3
    assert table.scan().count() == 2


def test_rule_02_another_size_or_time_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / _file(tmp_path, "f.parquet", {"a": [1, 2]})
    table = ss.create(tmp_path)
    times = path.stat()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    with pytest.raises(ss.NotReadableError, match=r"f\.parquet"):
        table.scan().to_table()
    with table.transaction() as tx:
        tx.replace(["f.parquet"], ["f.parquet"])
    assert table.scan().to_table().num_rows == 2


def test_rule_04_what_conflicts_and_what_does_not(tmp_path: Path) -> None:
    for name in ("f0", "f1", "later"):
        _file(tmp_path, f"{name}.parquet", {"a": [1]})
    table = ss.create(tmp_path, files=["f0.parquet", "f1.parquet"])

    def race(first, second) -> None:
        mine, other = ss.open(tmp_path), ss.open(tmp_path)
        with mine.transaction() as tx:
            second(tx)
            with other.transaction() as before:
                first(before)

    with pytest.raises(ss.CommitConflictError) as caught:
        race(lambda tx: tx.remove(["f0.parquet"]), lambda tx: tx.remove(["f0.parquet", "f1.parquet"]))
    assert caught.value.paths == ["f0.parquet"]
    table.refresh()
    assert _paths(table) == ["f1.parquet"]
    with pytest.raises(ss.CommitConflictError, match="later"):
        race(lambda tx: tx.add_files(["later.parquet"]), lambda tx: tx.add_files(["later.parquet"]))
    race(lambda tx: tx.write(pa.table({"a": [7]})), lambda tx: tx.write(pa.table({"a": [8]})))  # mere company
    race(lambda tx: tx.remove(["f1.parquet"]), lambda tx: tx.write(pa.table({"a": [9]})))
    assert sorted(table.refresh().scan().to_table().column("a").to_pylist()) == [1, 7, 8, 9]


@pytest.mark.parametrize("way", ["listed", "told", "task"])
def test_rule_04_adding_a_path_that_is_live_is_an_error_however_it_is_spelled(tmp_path: Path, way: str) -> None:
    size = os.path.getsize(tmp_path / _file(tmp_path, "k=1/f.parquet", {"a": [1]}))
    table = ss.create(tmp_path)
    for spelled in (
        "k=1/f.parquet",
        "./k=1/f.parquet",
        "k=1//f.parquet",
        f"{tmp_path}/k=1/f.parquet",
        f"file://{tmp_path}/k=1/f.parquet",
    ):
        with pytest.raises(ss.InvalidArgumentError, match="replace"), table.transaction() as tx:
            if way == "listed":
                tx.add_files([spelled])
            elif way == "told":
                tx.add_files(pa.table({"path": [spelled], "size_bytes": [size], "row_count": [1]}))
            else:
                with ss.TaskWriter(tx.task_spec()) as task:
                    task.add_files([spelled])
                tx.add_task(task.result)
    assert table.refresh().scan().count() == 1


def test_rule_04_a_live_path_under_another_partition_is_the_same_path(tmp_path: Path) -> None:
    size = os.path.getsize(tmp_path / _file(tmp_path, "k=1/f.parquet", {"a": [1]}))
    table = ss.create(tmp_path)
    with pytest.raises(ss.InvalidArgumentError, match="replace"):
        _add_told(table, {"path": "k=1/f.parquet", "size_bytes": size, "row_count": 1, "partition": {"k": 2}})
    assert table.scan().count() == 1


def test_rule_05_a_file_that_comes_back_is_a_new_file(tmp_path: Path) -> None:
    _file(tmp_path, "f.parquet", {"a": [1, 5]})
    _file(tmp_path, "g.parquet", {"a": [2, 6]})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom")
    first = dict(zip(_paths(table), table.files().column("file_id").to_pylist(), strict=True))
    with table.transaction() as tx:
        tx.remove(["f.parquet"])
    assert table.scan("a = 5").count() == 0
    with table.transaction() as tx:
        tx.add_files(["f.parquet"])
    again = dict(zip(_paths(table), table.files().column("file_id").to_pylist(), strict=True))
    assert again["f.parquet"] not in first.values() and again["g.parquet"] == first["g.parquet"]
    assert table.indexes().to_pylist()[-1]["files_covered"] == 1
    assert table.scan("a = 5").to_table().num_rows == 1
    assert _kept(table, "a = 6") == ["g.parquet"]


def test_rule_06_ids_are_never_given_again(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("p", pa.int64())]), partitioning=["p"])
    seen: set[int] = set()
    for number in range(5):
        added = _commit(table, {"a": [number, number], "p": [1, 2]})
        ids = set(table.files().column("file_id").to_pylist())
        assert len(ids) == 2 and not ids & seen
        seen |= ids
        with table.transaction() as tx:
            tx.remove(added)
        assert table.partitions().num_rows == 0
    assert len({i >> 32 for i in seen}) == 10  # a partition that was empty comes back under another number
    assert len({i & 0xFFFFFFFF for i in seen}) == 10


def test_rule_06_an_index_dropped_and_made_anew_does_not_inherit_what_a_writer_bound_to_the_old(tmp_path: Path) -> None:
    _file(tmp_path, "f.parquet", {"a": [1], "b": [2]})
    writer = ss.create(tmp_path)
    writer.create_index("a", kind="bloom")
    other = ss.open(tmp_path)
    with writer.transaction() as tx:
        tx.write(pa.table({"a": [10], "b": [20]}))
        other.drop_index("a", kind="bloom")
        other.create_index("b", kind="bloom")
        other.create_index("a", kind="bloom", fpp=0.2)
    ids = [i.id for v in range(1, writer.version + 1) for i in ss.open(tmp_path, version=v).instant.indexes]
    assert max(ids) == 4 and len({i.id for i in writer.instant.indexes}) == 3
    for where, count in {"a = 10": 1, "b = 20": 1, "a = 20": 0, "a = 1 AND b = 2": 1}.items():
        assert writer.scan(where).to_table().num_rows == writer.scan(where).count() == count
    covered = {row["name"]: row["files_covered"] for row in writer.indexes().to_pylist()}
    assert covered["bloom(b)"] == 1  # nothing was hashed of b when the task was written


def test_rule_06_a_refresh_of_an_index_that_was_made_anew_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    _file(tmp_path, "f.parquet", {"a": [1]})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom", maintain="refresh")
    _commit(table, {"a": [2]})
    other = ss.open(tmp_path)
    other.drop_index("a", kind="bloom")
    other.create_index("a", kind="bloom")
    with pytest.raises(ss.CommitConflictError):
        table.refresh_index("a", kind="bloom")
    assert ss.open(tmp_path).scan("a = 2").count() == 1


def test_rule_07_the_marker_of_a_transaction_is_there_before_its_first_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    created: list[tuple[str, int]] = []
    real = local.LocalStorage.create

    def create(self, path: str):
        created.append((path, len(list((tmp_path / ".skipstone/pending").glob("*.json")))))
        return real(self, path)

    monkeypatch.setattr(local.LocalStorage, "create", create)
    _commit(table, {"a": [1]})
    data = [pending for path, pending in created if not path.startswith(("pending/", "timeline/"))]
    assert data and all(data)
    assert not list((tmp_path / ".skipstone/pending").glob("*.json"))
    assert all(table.instant.transaction in path for path in _paths(table))


def test_rule_08_a_published_version_is_never_published_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from skipstone.engine.timeline import timeline as module

    monkeypatch.setattr(module, "_VERSIONS_A_FOLDER", 3)  # names lie in folders of bounded size
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    stale = ss.open(tmp_path)
    for number in range(8):
        _commit(table, {"a": [number]})
    bytes_before = {p: p.read_bytes() for p in (tmp_path / ".skipstone/timeline").rglob("*.json")}
    assert all(len(list(f.iterdir())) <= 3 for f in (tmp_path / ".skipstone/timeline").iterdir() if f.is_dir())
    _commit(stale, {"a": [100]})
    assert stale.version == 10 and stale.scan().count() == 9
    assert {p: p.read_bytes() for p in bytes_before} == bytes_before
    for hint in (None, b"2", b"77"):
        (tmp_path / ".skipstone/timeline/HINT").unlink()
        if hint:
            (tmp_path / ".skipstone/timeline/HINT").write_bytes(hint)
        assert ss.open(tmp_path).version == 10
        (tmp_path / ".skipstone/timeline/HINT").touch()
    assert table.timeline.publish(ss.open(tmp_path, version=4).instant)  # it is there, and is the same
    assert not table.timeline.publish(table.instant.__class__(**{**vars(table.instant), "transaction": "other"}))


def test_rule_09_a_key_commits_once_for_as_long_as_history_lasts(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    stale = ss.open(tmp_path)
    for number, key in enumerate(["x", None, "y", None]):
        with table.transaction(key=key) as tx:
            tx.write(pa.table({"a": [number]}))
    for handle in (stale, table, ss.open(tmp_path)):
        with handle.transaction(key="x") as tx:
            tx.write(pa.table({"a": [99]}))
    assert ss.open(tmp_path).version == 5
    assert sorted(ss.open(tmp_path).scan().to_table().column("a").to_pylist()) == [0, 1, 2, 3]
    assert len(list(tmp_path.glob("*.parquet"))) == 4  # what the retries wrote is removed
    assert ss.open(tmp_path).verify(deep=True) == []


def test_rule_13_without_hard_links_a_commit_is_refused_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    _file(tmp_path, "f.parquet", {"a": [1]})
    table = ss.create(tmp_path)

    def link(*_args) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(local.os, "link", link)
        with pytest.raises(ss.StorageError, match="hard links.*index_path"):
            _commit(table, {"a": [2]})
    assert ss.open(tmp_path).version == 1 and len(list(tmp_path.glob("*.parquet"))) == 1
    _commit(table, {"a": [3]})
    assert table.version == 2


def test_rule_14_time_on_a_timeline_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    now = time.time_ns()
    for number, hours in enumerate([5, -5, -50, 0]):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: now + hours * 3600 * 10**9)
        _commit(table, {"a": [number]})
    times = table.history().column("time").to_pylist()
    assert times == sorted(set(times))
    for version, at in enumerate(times, start=1):
        assert ss.open(tmp_path, as_of=at).version == version
        assert ss.open(tmp_path, as_of=at.replace(tzinfo=None)).version == version
        if version > 1:
            assert ss.open(tmp_path, as_of=at - dt.timedelta(microseconds=1)).version == version - 1


# -- evidence -------------------------------------------------------------------------------------------------------------


def _stats(**columns: tuple) -> dict:
    return {"stats": {n: dict(zip(("min", "max", "null_count"), v, strict=True)) for n, v in columns.items()}}


def test_rule_15_evidence_is_gathered_over_the_files_of_a_slice(tmp_path: Path) -> None:
    table = _told_table(tmp_path)
    group = {"file_group": "g", "slice_instant": "1"}
    _add_told(
        table,
        _told("base", **group, **_stats(a=(1, 1, 0), b=(0, 0, 0))),
        _told("log", **group, kind="log", merge="partial", **_stats(a=(None, None, None), b=(5, 5, 0))),
        _told("alone", **_stats(a=(1, 1, 0), b=(0, 0, 0))),
    )
    assert _kept(table, "a < b") == ["base", "log"]
    assert _kept(table, "a = 1 AND b = 5") == ["base", "log"]
    assert _kept(table, "b = 7") == []
    assert _kept(table, "b IS NULL") == ["base", "log"]  # a row that the partial log inserts
    assert _kept(table, "a = 1") == ["alone", "base", "log"]


def test_rule_15_a_log_is_never_dropped_from_a_slice_that_is_kept(tmp_path: Path) -> None:
    table = _told_table(tmp_path)
    group = {"file_group": "g"}
    _add_told(
        table,
        _told("base", **group, **_stats(a=(1, 5, 0))),
        _told("log", **group, kind="log", merge="whole", **_stats(a=(50, 60, 0))),
    )
    assert _kept(table, "a = 3") == _kept(table, "a = 55") == ["base", "log"]
    assert _kept(table, "a = 30") == ["base", "log"] or _kept(table, "a = 30") == []
    assert table.scan("a = 3").row_groups().column("row_group").to_pylist() == [None, None]
    for ask in (lambda p: p.to_table(), lambda p: p.count(), lambda p: list(p.to_batches())):
        with pytest.raises(ss.NotReadableError) as caught:
            ask(table.scan("a = 3"))
        assert set(caught.value.paths) == {"base", "log"}
    assert table.scan("a = 1000").count() == 0


def test_rule_16_a_merge_that_computes_is_unknown(tmp_path: Path) -> None:
    table = _told_table(tmp_path)
    _add_told(
        table,
        _told("base", file_group="g", **_stats(a=(3, 3, 0))),
        _told("log", file_group="g", kind="log", merge="custom", **_stats(a=(4, 4, 0))),
    )
    for where in ("a = 7", "a IS NULL", "a > 100", "a != 3"):
        assert _kept(table, where) == ["base", "log"]


def test_rule_18_a_log_of_unknown_state_may_be_live(tmp_path: Path) -> None:
    table = _told_table(tmp_path)
    _add_told(
        table,
        _told("base", file_group="g", **_stats(a=(1, 1, 0))),
        _told("log", file_group="g", kind="log", commit="c17", merge="whole", **_stats(a=(9, 9, 0))),
    )
    assert _kept(table, "a = 9") == ["base", "log"]


def test_rule_19_a_delete_block_keeps_no_slice_and_makes_it_inexact(tmp_path: Path) -> None:
    size = os.path.getsize(tmp_path / _file(tmp_path, "base.parquet", {"a": [1] * 10, "b": [0] * 10}))
    table = _told_table(tmp_path / "t")
    where = str(tmp_path / "base.parquet")
    _add_told(
        table,
        {**_told(where, file_group="g", **_stats(a=(1, 1, 0))), "size_bytes": size},
        _told("gone", 3, file_group="g", kind="delete"),
        _told("back", 3, file_group="g", kind="rollback"),
    )
    assert _kept(table, "a = 2") == []  # the delete block, with no statistics, does not keep it
    assert _kept(table, "a = 1") == sorted([where, "back", "gone"])
    with pytest.raises(ss.NotReadableError):
        table.scan("a = 1").count()
    with pytest.raises(ss.NotReadableError):
        table.scan("a = 1").to_table()


def test_rule_21_a_damaged_index_run_is_uncovered_with_a_warning_and_strict_raises(tmp_path: Path) -> None:
    for number in range(3):
        _file(tmp_path, f"{number}.parquet", {"a": [number, 10 * number]})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom")
    for kind in ("stats", "filter"):
        path = index_files(table)[kind][0]
        with flipped(path, path.stat().st_size // 3), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            plan = ss.open(tmp_path).scan("a = 20")
            assert plan.to_table().num_rows == 1
            assert any("damaged" in str(w.message) for w in told)
            assert str(path).endswith(plan.damaged[0]) and plan.damaged[0] in plan.explain()
            with pytest.raises(ss.CorruptionError):
                ss.open(tmp_path, strict=True).scan("a = 20").to_table()
    for kind in ("manifest", "instant"):
        path = index_files(table)[kind][0]
        with flipped(path, path.stat().st_size // 2):
            for strict in (False, True):
                with pytest.raises(ss.CorruptionError):
                    ss.open(tmp_path, strict=strict).scan("a = 20").to_table()
            assert kind == "instant" or "damaged" in {f.kind for f in ss.open(tmp_path).verify(deep=True)}
    assert table.verify(deep=True) == []


@pytest.mark.parametrize("way", ["attached", "written", "told"])
def test_rule_22_nan_is_a_value_that_bounds_do_not_show(tmp_path: Path, way: str) -> None:
    rows = {"x": [1.0, 2.0, NAN], "k": [1, 1, 1]}
    size = os.path.getsize(tmp_path / _file(tmp_path, "f.parquet", rows))
    if way == "attached":
        table = ss.create(tmp_path)
    else:
        table = ss.create(tmp_path / "t", schema=pa.schema([("x", pa.float64()), ("k", pa.int64())]))
        if way == "written":
            _commit(table, rows)
        else:
            stats = {"x": {"min": 1.0, "max": 2.0, "null_count": 0}}
            _add_told(table, {"path": str(tmp_path / "f.parquet"), "size_bytes": size, "row_count": 3, "stats": stats})
    wanted = {
        "x < 5": 2, "x > 5": 1, "x >= 1": 3, "x > 2": 1, "x != 1": 2, "NOT (x < 5)": 1, "NOT (x > 5)": 2, "x <= 2": 2, "x = x": 3,
        "x NOT IN (1, 2)": 1, "x BETWEEN 0 AND 9": 2,
    }  # fmt: skip
    for where, count in wanted.items():
        assert table.scan(where).count() == table.scan(where).to_table().num_rows == count, where
    assert table.scan(col("x") == NAN).count() == table.scan(col("x").is_nan()).count() == 1
    assert table.scan(col("x").is_in([NAN, 1.0])).count() == 2
    assert table.scan(col("x") >= NAN).count() == 1 and table.scan(col("x") > NAN).count() == 0
    table.create_index("x", kind="bloom")
    assert table.scan(col("x") == NAN).count() == 1


def test_rule_23_all_null_is_believed_only_where_rows_were_counted(tmp_path: Path) -> None:
    table = _told_table(tmp_path)
    nulls = {"stats": {"a": {"min": None, "max": None, "null_count": 3}}}
    _add_told(
        table,
        _told("exact", 3, row_counts_exact=True, **nulls),
        _told("loose", 3, row_counts_exact=False, **nulls),
        _told("default", 3, row_counts_exact=None, **nulls),
    )
    assert _kept(table, "a = 5") == ["loose"]
    assert _kept(table, "a IS NOT NULL") == ["loose"]
    assert _kept(table, "a IS NULL") == ["default", "exact", "loose"]
    assert table.scan("a IS NULL AND a = 5").files().num_rows <= 1


def test_rule_25_bounds_that_callers_gave_prune_but_never_decide_a_count(tmp_path: Path) -> None:
    size = os.path.getsize(tmp_path / _file(tmp_path, "f.parquet", {"a": [2, 3], "b": [0, 0]}))
    table = _told_table(tmp_path / "t")
    told = {"path": str(tmp_path / "f.parquet"), "size_bytes": size, "row_count": 2}
    _add_told(table, {**told, **_stats(a=(0, 9, None))})  # wider than the rows, as a cut bound would be
    assert table.scan("a > 9").files().num_rows == 0
    assert table.scan("a > 2").count() == 1
    assert table.scan("a < 3").to_table().num_rows == 1


def test_rule_25_cut_bounds_of_texts_prune_on_the_right_side(tmp_path: Path) -> None:
    texts = ["a" * 300, "a" * 299 + "b", "é" * 200, "\U0010ffff" * 70]
    for number, text in enumerate(texts):
        _file(tmp_path, f"{number}.parquet", {"s": [text]})
    table = ss.create(tmp_path)
    _commit(table, {"s": texts})
    for text in texts:
        for op in ("__eq__", "__ge__", "__le__"):
            assert table.scan(getattr(col("s"), op)(text)).to_table().num_rows >= 2
        assert table.scan(col("s") == text).count() == 2
        assert table.scan(col("s") > text[:-1]).to_table().num_rows >= 2


def test_rule_26_equal_values_of_any_width_hash_alike(tmp_path: Path) -> None:
    kinds = [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64()]
    for number, kind in enumerate(kinds[:4]):
        _file(tmp_path, f"{number}.parquet", {"a": pa.array([5, 100 + number], kind)})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom", fpp=0.001)
    assert table.scan("a = 5").count() == 4 and table.scan("a = 101").count() == 1
    floats = ss.create(tmp_path / "f", schema=pa.schema([("x", pa.float64())]))
    floats.create_index("x", kind="bloom")
    _commit(floats, {"x": [0.0]})
    _commit(floats, {"x": [-0.0]})
    _commit(floats, {"x": [NAN, None]})
    for zero in (0, 0.0, -0.0):
        assert floats.scan(col("x") == zero).count() == 2
        assert floats.scan(col("x").is_in([zero])).files().num_rows == 2
    assert floats.scan(col("x") == NAN).count() == 1


CASTS = {
    "float32 and float64": (pa.float32(), [0.1], pa.float64(), [0.1], col("x") == 0.1, 1),
    "int32 and float64": (pa.int32(), [1, 2], pa.float64(), [2.5], "x = 2.5", 1),
    "int32 and int64": (pa.int32(), [1, 2], pa.int64(), [2**40, None], col("x") == 2**40, 1),
    "int32 and int64, in": (pa.int32(), [1, 2], pa.int64(), [2**40, None], col("x").is_in([2**40, 1]), 2),
    "int8 and int16, not": (pa.int8(), [1, None], pa.int16(), [300, 301], col("x") != 300, 2),
    "int8 and int64, below": (pa.int8(), [1, None], pa.int64(), [300, None], "x < 1000", 2),
    "int8 and int64, above": (pa.int8(), [1, None], pa.int64(), [3000, None], "x > 1000", 1),
    "milli- and microseconds": (
        pa.timestamp("ms"), [1], pa.timestamp("us"), [5, None], "x = TIMESTAMP '1970-01-01 00:00:00.000005'", 1),
    "decimals of other scales": (
        pa.decimal128(5, 2), [Decimal("1.00")], pa.decimal128(7, 4), [Decimal("1.0001"), None], "x = 1.0001", 1),
    "binary and text": (pa.binary(), [b"\xff", None], pa.string(), ["a", None], "x = 'a'", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", CASTS)
def test_rule_27_a_literal_meets_each_file_in_the_type_that_it_was_indexed_in(tmp_path: Path, case: str) -> None:
    first, low, second, high, where, count = CASTS[case]
    _file(tmp_path, "0.parquet", {"x": pa.array(low, first)})
    _file(tmp_path, "1.parquet", {"x": pa.array(high, second)})
    table = ss.create(tmp_path)
    for indexed in (False, True):
        if indexed:
            table.create_index("x", kind="bloom", fpp=0.001)
        plan = table.scan(where)
        assert plan.to_table().num_rows == plan.count() == count


@pytest.mark.parametrize(
    ("first", "second"), [((pa.int64(), 2**53 + 1), (pa.float64(), 0.5)), ((pa.uint64(), 2**63 + 5), (pa.int64(), -1))]
)
def test_rule_27_columns_that_no_type_holds_exactly_do_not_meet_in_one_table(
    tmp_path: Path, first: tuple, second: tuple
) -> None:
    for number, (kind, value) in enumerate((first, second)):
        _file(tmp_path, f"{number}.parquet", {"x": pa.array([value], kind)})
    with pytest.raises(ss.SchemaError, match="'x'"):
        ss.create(tmp_path)


def test_rule_28_names_in_a_file_are_read_by_the_schema_that_the_file_has(tmp_path: Path) -> None:
    _file(tmp_path, "0.parquet", {"a": [1], "b": [2]})
    _file(tmp_path, "1.parquet", {"b": [3], "a": [4]})
    _file(tmp_path, "2.parquet", {"b": [5]})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom")
    assert table.scan("a = 4 AND b = 3").count() == 1
    assert table.scan("a IS NULL").to_table().column("b").to_pylist() == [5]
    assert _kept(table, "a = 1") == ["0.parquet"]


def test_rule_29_dots_go_through_structs_only(tmp_path: Path) -> None:
    rows = {
        "t": pa.array(
            [{"x": 1, "l": [1, 2]}, {"x": None, "l": None}, None],
            pa.struct([("x", pa.int8()), ("l", pa.list_(pa.int8()))]),
        ),
        "l": pa.array([[{"x": 9}], [], None], pa.list_(pa.struct([("x", pa.int8())]))),
        "m": pa.array([[("k", 7)], None, []], pa.map_(pa.string(), pa.int8())),
    }
    _file(tmp_path, "f.parquet", rows)
    table = ss.create(tmp_path)
    assert table.scan("t.x = 1").count() == 1
    assert table.scan("t.x IS NULL").count() == 2 and table.scan("t.x = 5").files().num_rows == 0
    for inside in ("l.x = 9", "t.l.item = 1", "m.value = 7"):
        with pytest.raises(ss.PredicateError):
            table.scan(inside).to_table()
    for inside in ("l.x", "t.l", "m", "l"):
        with pytest.raises(ss.SchemaError):
            table.create_index(inside, kind="bloom")
    assert table.scan("l IS NULL").count() == 1


def test_rule_30_one_flipped_bit_in_a_filter_never_loses_a_row(tmp_path: Path) -> None:
    values = [f"v{i:04}" for i in range(200)]
    for number in range(4):
        _file(tmp_path, f"{number}.parquet", {"s": values[50 * number : 50 * number + 50]}, row_group_size=25)
    table = ss.create(tmp_path)
    table.create_index("s", kind="bloom")
    (path,) = index_files(table)["filter"]
    warned = 0
    for offset in range(0, path.stat().st_size, max(1, path.stat().st_size // 60)):
        with flipped(path, offset, 0xFF), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fresh = ss.open(tmp_path)
            assert all(fresh.scan(col("s") == v).to_table().num_rows == 1 for v in values[::37])
            warned += bool(told)
    assert warned > 10


# -- answers --------------------------------------------------------------------------------------------------------------


def test_rule_33_what_is_not_understood_never_prunes(tmp_path: Path) -> None:
    for number in range(2):
        _file(tmp_path, f"{number}.parquet", {"a": [number], "s": ["x"]})
    table = ss.create(tmp_path)
    plan = table.scan("a = 1 AND regexp_like(s, '^y')")
    assert plan.files().column("path").to_pylist() == ["1.parquet"]  # the other part of the AND does prune
    assert plan.row_groups().num_rows == 1
    for ask in (plan.to_table, plan.count, lambda: list(plan.to_batches())):
        with pytest.raises(ss.PredicateError, match="(?i)regexp_?like"):
            ask()
    assert table.scan("a = 1 OR regexp_like(s, '^y')").files().num_rows == 2
    assert table.scan("NOT (a = 1 AND regexp_like(s, '^y'))").files().num_rows == 2
    assert "not understood" in plan.explain()


def test_rule_34_counts_that_metadata_decides_need_no_readable_file(tmp_path: Path) -> None:
    table = _told_table(tmp_path)
    _add_told(
        table,
        _told("nowhere", 10, **_stats(a=(1, 5, 0))),
        _told("vague", 7, row_counts_exact=False, **_stats(a=(50, 60, 0))),
    )
    assert table.scan("a < 9").count() == 10
    assert table.scan("a > 100").count() == 0
    for where in ("a = 3", "a > 40", None):
        with pytest.raises(ss.NotReadableError):
            table.scan(where).count()
        with pytest.raises(ss.NotReadableError):
            table.scan(where).to_table()


def test_rule_35_a_limit_bounds_rows_and_nothing_else(tmp_path: Path) -> None:
    for number in range(4):
        _file(tmp_path, f"{number}.parquet", {"a": list(range(10))}, row_group_size=3)
    table = ss.create(tmp_path)
    for limit, rows in ((0, 0), (1, 1), (7, 7), (28, 28), (100, 28)):
        plan = table.scan("a >= 3", limit=limit)
        got = plan.to_table()
        assert got.num_rows == rows and all(v >= 3 for v in got.column("a").to_pylist())
        assert sum(b.num_rows for b in plan.to_batches()) == rows
        assert pa.table(plan).num_rows == rows
        assert plan.count() == 28 and plan.files().num_rows == 4 and plan.row_groups().num_rows == 12


def test_rule_37_row_groups_that_are_not_known_are_one_row_with_null(tmp_path: Path) -> None:
    size = os.path.getsize(tmp_path / _file(tmp_path, "f.parquet", {"a": [1, 2, 3], "b": [1, 1, 1]}, row_group_size=1))
    table = _told_table(tmp_path / "t")
    _add_told(table, {"path": str(tmp_path / "f.parquet"), "size_bytes": size, "row_count": 3})
    assert table.scan("a = 2").row_groups().to_pylist() == [{"path": str(tmp_path / "f.parquet"), "row_group": None}]
    assert table.scan("a = 2").to_table().column("a").to_pylist() == [2]
    assert table.scan("a = 2").count() == 1


def test_rule_38_an_executor_that_meets_another_file_than_was_planned_raises(tmp_path: Path) -> None:
    path = tmp_path / _file(tmp_path, "f.parquet", {"a": [1, 2, 3]}, row_group_size=1)
    plan = ss.create(tmp_path).scan("a = 2")
    (task,), context = pickle.loads(pickle.dumps((plan.tasks, plan.context)))
    data, index = Counted(open_storage(context.location)), open_storage(context.index_location)
    (groups,) = row_groups_of([task], context, index)
    assert groups.kept == [1]
    assert [t.to_pydict() for t in read_matches(task, groups, context, data)] == [{"a": [2]}]
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ss.NotReadableError, match=r"f\.parquet"):
        list(read_matches(task, groups, context, data))
    path.unlink()
    with pytest.raises(ss.NotReadableError, match="gone"):
        list(read_matches(task, groups, context, data))


def test_rule_39_sql_names_and_texts(tmp_path: Path) -> None:
    _file(tmp_path, "f.parquet", {"a b": ["x'y", "a", None], "c": [1, 2, 3]})
    table = ss.create(tmp_path)
    assert table.scan("\"a b\" = 'x''y'").count() == 1
    assert table.scan("`a b` = 'a'").count() == 1
    assert table.scan("`a b` IN ('a', NULL)").count() == 1
    assert table.scan("`a b` NOT IN ('a', NULL)").count() == 0
    assert table.scan("`a b` = NULL OR c = 3").count() == 1


def test_rule_39_a_hive_value_that_does_not_fit_names_its_path(tmp_path: Path) -> None:
    _file(tmp_path, "k=1/f.parquet", {"a": [1]})
    table = ss.create(tmp_path)
    _file(tmp_path, "k=abc/f.parquet", {"a": [1]})
    with pytest.raises(ss.SchemaError, match="k=abc"), table.transaction() as tx:
        tx.add_files(["k=abc/f.parquet"])
    assert ss.open(tmp_path).version == 1


def test_rule_39_a_file_group_is_one_within_its_partition(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("k", pa.int64())])
    table = ss.create(tmp_path, schema=schema, partitioning=["k"])
    _add_told(
        table,
        _told("k=1/f", file_group="g", **_stats(a=(1, 1, 0))),
        _told("k=2/f", file_group="g", **_stats(a=(9, 9, 0))),
    )
    assert _kept(table, "a = 9") == ["k=2/f"]


def test_rule_40_what_was_merely_added_is_a_hole_and_what_we_wrote_is_covered(tmp_path: Path) -> None:
    _file(tmp_path, "0.parquet", {"a": [1, 100]})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom", fpp=0.0001)
    _file(tmp_path, "1.parquet", {"a": [2, 200]})
    with table.transaction() as tx:
        tx.add_files(["1.parquet"])
        tx.write(pa.table({"a": [3, 300]}))
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(pa.table({"a": [4, 400]}))
        tx.add_task(task.result)
    assert table.indexes().to_pylist()[-1]["files_covered"] == 3
    for value in (1, 2, 3, 4, 100, 200, 300, 400):
        assert table.scan(f"a = {value}").count() == 1
    assert _kept(table, "a = 50") == ["1.parquet"]  # covered files are pruned by the filter, the hole is not
    assert table.refresh_index("a", kind="bloom") == 4
    assert table.refresh_index("a", kind="bloom") == 4  # nothing to do makes no version
    assert _kept(table, "a = 50") == [] and table.indexes().to_pylist()[-1]["files_covered"] == 4


def test_rule_40_an_index_that_commits_leave_behind_covers_what_it_was_built_over(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    _commit(table, {"a": [1, 100]})
    table.create_index("a", kind="bloom", maintain="refresh", fpp=0.0001)
    (late,) = _commit(table, {"a": [2, 200]})
    assert _kept(table, "a = 50") == [late]
    assert table.scan("a = 200").count() == table.scan("a = 100").count() == 1
    old = ss.open(tmp_path, version=3)
    table.drop_index("a", kind="bloom")
    assert len(_kept(table, "a = 50")) == 2
    assert _kept(old, "a = 50") == [] and old.scan("a = 100").count() == 1


def test_traps_of_other_systems(tmp_path: Path) -> None:
    _file(tmp_path, "f.parquet", {"x": list(range(1, 11)), "s": ["a"] * 9 + ["ab"], "n": [None] * 10, "y": [1] * 10})
    table = ss.create(tmp_path)
    table.create_index("s", kind="bloom")
    wanted = {
        "x != 5": 9, "s LIKE 'a%'": 10, "s LIKE 'a'": 9, "n IS NULL": 10, "n IS NOT NULL": 0, "n <=> NULL": 10, "n = NULL": 0, "x IN (1, NULL)": 1,
        "x NOT IN (1, NULL)": 0, "x = 1 AND y = 1": 1, "s = ''": 0, "NOT (n = 1)": 0, "n = 1 OR x = 2": 1, "x = 0": 0,
    }  # fmt: skip
    for where, count in wanted.items():
        assert table.scan(where).count() == table.scan(where).to_table().num_rows == count, where


def test_nanoseconds_and_zones_are_instants(tmp_path: Path) -> None:
    base = np.datetime64("2020-01-01T00:00:00", "ns").astype(np.int64)
    stamps = pa.array([int(base) + i for i in (0, 1, 999, 1000)], pa.timestamp("ns", "America/New_York"))
    _file(tmp_path, "f.parquet", {"t": stamps}, row_group_size=1)
    table = ss.create(tmp_path)
    for indexed in (False, True):
        if indexed:
            table.create_index("t", kind="bloom")
        for value in stamps:
            assert table.scan(col("t") == value).count() == 1
            assert table.scan(col("t") > value).count() == sum(pc.greater(stamps, value).to_pylist())
        assert table.scan("t = TIMESTAMP '2020-01-01 00:00:00Z'").count() == 1
