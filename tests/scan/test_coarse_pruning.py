"""coarse and prune_partition: what an executor prunes by itself loses no row, and reads what it must.

Rows of random lakes are the oracle; `coarse` goes through a pickle first, as it does on its way to an executor.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from predicate_strategies import predicates, row_matches
from skipstone import col
from skipstone import spark_adapter as sks
from skipstone.engine.storage import LocalStorage
from skipstone.spark_adapter.columns import text_predicate
from soundness_lakes import make_lake
from soundness_predicates import FORMS, Pool, outcomes_of, random_tree, where_of
from test_slice_scan import TABLE_SCHEMA, groups, live, table_of, worlds

LAKES, ASKED = examples(4), 20


def _carried(path: object, columns: list[str], **options) -> sks.Coarse:
    return pickle.loads(pickle.dumps(sks.coarse(str(path), columns, **options)))


def test_a_column_with_only_a_secondary_index_excludes_no_file(tmp_path: Path) -> None:
    names = [str(number) for number in range(2)]
    for name in names:
        pq.write_table(pa.table({"u": [name, "z"], "a": [1, 2]}), tmp_path / f"{name}.parquet")
    table = ss.create(tmp_path)
    table.create_index("u", kind="secondary")
    assert table.scan("u = '1'").files().num_rows == 1
    coarse = _carried(tmp_path, ["u", "a"])
    paths = [f"{name}.parquet" for name in names]
    assert [path for path, _ in sks.prune_partition(paths, coarse, "u = '1'")] == paths
    table.create_index("u", kind="bloom")
    coarse = _carried(tmp_path, ["u"])
    assert [path for path, _ in sks.prune_partition(paths, coarse, "u = '1'")] == ["1.parquet"]


# -- no row is lost ---------------------------------------------------------------------------------------------------


def test_no_row_is_lost() -> None:
    pruned = 0
    for seed in range(LAKES):
        root = tempfile.mkdtemp(prefix="skipstone-coarse-")
        try:
            lake = make_lake(seed, root, 8)
            rng = random.Random(seed)
            indexed = [name for name in lake.table.handle.instant.columns if rng.random() < 0.8]
            coarse = _carried(lake.table.location, indexed, filter_bytes=rng.choice([0, 1 << 20]))
            pool = Pool(lake, rng, 20)
            paths = sorted({path for path, _ in lake.units})
            for _ in range(ASKED):
                tree = random_tree(pool, rng)
                where = where_of(tree, pool, rng.choice([form for form in FORMS if form != "text"]))  # text is Spark's
                matching = {lake.units[u] for u in np.unique(lake.unit_of[outcomes_of(tree, pool) == 2]).tolist()}
                asked = [*rng.sample(paths, len(paths)), "p=9/not-known.parquet"]
                kept = list(sks.prune_partition(asked, coarse, where))
                assert [path for path in asked if path in dict(kept)] == [path for path, _ in kept]
                found = dict(kept)
                assert found.pop("p=9/not-known.parquet") is None
                lost = [u for u in matching if u[0] not in found or ((g := found[u[0]]) is not None and u[1] not in g)]
                assert not lost, (seed, where, lost)
                pruned += len(paths) - len(found)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    assert pruned > LAKES * ASKED  # of eight files, one at least


@given(st.data())
@settings(max_examples=examples(3))
def test_rule_15_slices_come_back_whole_or_not_at_all(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        lake = [data.draw(groups(root, number)) for number in range(data.draw(st.integers(1, 3)))]
        states = data.draw(
            st.dictionaries(st.sampled_from(["c0", "c1", "c2"]), st.sampled_from(["failed", "inflight"]))
        )
        with table_of(os.path.join(root, "t"), [file for group in lake for file in group]) as table:
            table.create_index("a", kind="bloom", fpp=0.1)
            with table.transaction() as tx:
                tx.set_commit_state(states)
            coarse = _carried(table.location, data.draw(st.permutations(["a", "b", "f", "s"]))[:3])
            for _ in range(3):
                node = data.draw(predicates(TABLE_SCHEMA))
                found = dict(sks.prune_partition([f.path for group in lake for f in group], coarse, node))
                planned = set(table.scan(node).row_groups()["path"].to_pylist())
                assert planned <= set(found)  # the plan uses all columns, and may leave out more
                for group in lake:
                    files = live(group, states)
                    paths = {file.path for file in files}
                    possible = worlds(files, states)
                    if possible is not None and any(
                        row_matches(node, row) is True for rows in possible for row in rows
                    ):
                        assert {file.path for file in files if file.rows} <= set(found)
                    if any(file.kind in ("log", "delete") for file in files):
                        assert set(found) & {file.path for file in group} in (set(), paths)
                        assert all(groups is None or groups == [0] for path, groups in found.items() if path in paths)


# -- what is read -----------------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """p=0, p=1: four files each of five row groups of twenty; k counts through all, s is scattered."""
    root = tmp_path / "lake [é] 100%"
    for number in range(8):
        folder = root / f"p={number // 4}"
        folder.mkdir(parents=True, exist_ok=True)
        ks = np.arange(100) + 100 * number
        rows = pa.table({"k": ks, "s": [_scattered(k) for k in ks.tolist()], "other": ks})
        pq.write_table(rows, folder / f"{number} +é%20.parquet", row_group_size=20)
    with ss.create(root) as table:
        table.create_index("s", kind="bloom", fpp=0.001)
    return root


def _scattered(k: int) -> str:
    return f"s{k * 7919 % 10_007}"


def _paths(lake: Path) -> list[str]:
    with ss.open(lake) as table:
        return table.files()["path"].to_pylist()


def test_of_the_index_only_the_fine_parts_of_own_files_are_read(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coarse, paths = _carried(lake, ["k", "s"]), _paths(lake)
    with ss.open(lake) as table:
        tasks = {task.path: task for task in table.scan("k >= 0").planning.tasks}
    read: list[str] = []
    looked_at: list[str] = []
    ranges, stat = LocalStorage.read_ranges, LocalStorage.stat

    def note_read(self, path, wanted):
        read.extend(f"{path}@{offset}" for offset, _ in wanted)
        return ranges(self, path, wanted)

    def note_stat(self, path):
        looked_at.append(path)
        return stat(self, path)

    monkeypatch.setattr(LocalStorage, "read_ranges", note_read)
    monkeypatch.setattr(LocalStorage, "stat", note_stat)
    for name in ("read", "read_entry", "list_folder"):
        monkeypatch.setattr(LocalStorage, name, lambda *_: pytest.fail("read whole, or listed"))
    assert list(sks.prune_partition(paths, coarse, "k = 150")) == [(paths[1], [2])]
    ((fine, offset, _),) = tasks[paths[1]].fine
    assert read == [f"{fine}@{offset}"]
    assert looked_at == [paths[1]]
    read.clear()
    assert list(sks.prune_partition(paths, coarse, "s = 'nowhere' OR p = 7 OR k = -1")) == []
    assert read == []
    assert list(sks.prune_partition(paths, coarse, f"s = '{_scattered(730)}'")) == [(paths[7], [1])]
    ((fine, offset, _),) = tasks[paths[7]].fine
    assert read == [f"{fine}@{offset}"]  # the run of so few filters was copied whole
    read.clear()
    assert len(list(sks.prune_partition(paths[:2], coarse, "k = 730 OR s = 'nowhere'"))) == 0
    assert read == []


def test_columns_that_were_not_taken_along_prune_nothing(lake: Path) -> None:
    coarse, paths = _carried(lake, ["k"]), _paths(lake)
    found = dict(sks.prune_partition(paths, coarse, "other = 150 AND k < 210 AND p = 0"))
    assert found == {paths[0]: [0, 1, 2, 3, 4], paths[1]: [0, 1, 2, 3, 4], paths[2]: [0]}
    assert len(dict(sks.prune_partition(paths, coarse, f"s = '{_scattered(5)}'"))) == 8
    assert coarse.columns == ("k",)


def test_filters_that_found_no_room_are_asked_where_they_lie(tmp_path: Path) -> None:
    for number in range(4):
        values = np.random.default_rng(number).integers(0, 1 << 60, 40_000)
        pq.write_table(pa.table({"s": values}), tmp_path / f"{number}.parquet", row_group_size=10_000)
    with ss.create(tmp_path) as table:
        table.create_index("s", kind="bloom")
    small, large = _carried(tmp_path, ["s"], filter_bytes=0), _carried(tmp_path, ["s"])
    assert small.size_bytes + 50_000 < large.size_bytes
    for where in (f"s = {values[25_000]}", "s = 5"):
        found = [list(sks.prune_partition(_paths(tmp_path), coarse, where)) for coarse in (small, large)]
        assert found[0] == found[1]
    assert len(found[0]) == 0


# -- names ------------------------------------------------------------------------------------------------------------


def test_one_file_by_all_its_names(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = _carried(lake, ["k"])
    inside = _paths(lake)[1]
    (tmp_path / "link").symlink_to(lake)
    names = [
        inside,
        str(lake / inside),
        str(tmp_path / "link" / inside),
        f"file://{quote(str(lake / inside))}",
        f"file:{quote(str(lake / inside))}",
        f"file:///{quote(str(lake / inside)[1:], safe='/=+é[]')}",  # what Spark escapes is its own affair
        f"./{inside}",
        f"p=1/../{inside}",
    ]
    assert list(sks.prune_partition(names, coarse, "k = 150")) == [(name, [2]) for name in names]
    assert list(sks.prune_partition(names, coarse, "k = -1")) == []
    assert list(sks.prune_partition(map(Path, names[:3]), coarse, "k = 150")) == [(name, [2]) for name in names[:3]]
    # a name without a scheme is a path, and what is not ours is returned whole
    strange = [quote(inside), "s3://elsewhere/x.parquet", "file:///", "a\0b", "file:///%ff", "hdfs://n/lake", "", "."]
    assert list(sks.prune_partition(strange, coarse, "k = -1")) == [(name, None) for name in strange]


def test_many_paths_are_taken_as_they_come(lake: Path) -> None:
    coarse = _carried(lake, ["k"])
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield "not-known.parquet"

    found = sks.prune_partition(endless(), coarse, "k = 1")
    assert next(found) == ("not-known.parquet", None)
    assert taken < 100


# -- concurrent changes -----------------------------------------------------------------------------------------------


def test_an_overwritten_file_comes_back_whole(lake: Path) -> None:
    coarse, paths = _carried(lake, ["k"]), _paths(lake)
    pq.write_table(pa.table({"k": np.arange(50), "s": ["x"] * 50, "other": np.arange(50)}), lake / paths[1])
    (lake / paths[2]).unlink()
    assert dict(sks.prune_partition(paths, coarse, "k IN (30, 150, 250)")) == {
        paths[0]: [1],
        paths[1]: None,
        paths[2]: None,
    }


def test_a_version_is_pinned_and_later_files_come_back_whole(lake: Path) -> None:
    coarse = _carried(lake, ["k"])
    with ss.open(lake) as table, table.transaction() as tx:
        tx.remove(_paths(lake)[:1])
        tx.write(pa.table({"k": [1], "s": ["a"], "other": [1], "p": [0]}))
    with ss.open(lake) as table:
        later = set(table.files()["path"].to_pylist()) - set(dict(sks.prune_partition(_paths(lake), coarse, "k < 0")))
    assert coarse.version < table.version
    assert len(later) == 7
    assert len(dict(sks.prune_partition(_paths(lake), _carried(lake, ["k"], version=coarse.version), "k < 0"))) == 1


@pytest.mark.parametrize("how", ["damaged", "cleaned"])
def test_a_fine_part_that_cannot_be_read_says_so_and_its_files_come_back_whole(lake: Path, how: str) -> None:
    coarse, paths = _carried(lake, ["k"]), _paths(lake)
    for path in (lake / ".skipstone" / "tasks").rglob("*.sbf"):
        if how == "cleaned":
            path.unlink()
        else:
            path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.warns(UserWarning, match="fine index is left out"):
        assert list(sks.prune_partition(paths, coarse, "k = 150")) == [(paths[1], None)]


def test_a_run_that_is_damaged_when_it_is_made_prunes_nothing(lake: Path) -> None:
    with ss.open(lake) as table:
        (run,) = next(index.runs for index in table.handle.instant.indexes if index.kind == "bloom")
        table.handle.forget()
    path = lake / ".skipstone" / run.path
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.warns(UserWarning, match="damaged and left out"):
        coarse = sks.coarse(lake, ["s", "k"])
    paths = _paths(lake)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # executors need no second warning
        assert len(list(sks.prune_partition(paths, pickle.loads(pickle.dumps(coarse)), "s = 's15x'"))) == 8
        assert list(sks.prune_partition(paths, coarse, "s = 's15x' AND k = 150")) == [(paths[1], [2])]


# -- what is carried --------------------------------------------------------------------------------------------------


def test_for_one_key_its_rows_of_the_filters_are_enough(lake: Path) -> None:
    """And another key is answered as rightly."""
    whole = sks.coarse(lake, ["s"])
    keys = np.random.default_rng(3).integers(0, 8 * 100, (examples(4), 2)).tolist()
    for wheres in [[f"s = '{_scattered(key)}'" for key in pair] for pair in keys]:
        narrow = _carried(lake, ["s"], where=wheres[0])
        assert narrow.size_bytes <= whole.size_bytes
        for where in wheres:
            expected = list(sks.prune_partition(_paths(lake), whole, where))
            assert list(sks.prune_partition(_paths(lake), narrow, where)) == expected != []


def test_more_than_the_budget_is_refused_with_what_is_in_it(lake: Path) -> None:
    coarse = sks.coarse(lake, ["s", "k"])
    assert sks.coarse(lake, ["s", "k"], bytes_max=coarse.size_bytes).size_bytes == coarse.size_bytes
    with pytest.raises(ss.InvalidArgumentError, match=r"bytes  bloom\(s\)[^$]*give where=") as refused:
        sks.coarse(lake, ["s", "k"], bytes_max=coarse.size_bytes - 1)
    sizes = [int(line.split()[0].replace(",", "")) for line in coarse.explain().splitlines()[1:]]
    assert sum(sizes) == coarse.size_bytes and min(sizes[:2]) > 0
    assert coarse.explain() in str(refused.value)


# -- forms, and errors ------------------------------------------------------------------------------------------------


def test_predicates_of_every_form(lake: Path) -> None:
    coarse, paths = _carried(lake, ["k"]), _paths(lake)
    wanted = [(paths[1], [2])]
    for where in (
        "k = 150",
        col("k") == 150,
        [("k", "=", 150)],
        pa.compute.field("k") == 150,
        pickle.loads(pickle.dumps(sks.predicate(None, col("k") == 150))),
    ):
        assert list(sks.prune_partition(paths, coarse, where)) == wanted
    assert len(list(sks.prune_partition(paths, coarse, None))) == 8
    assert len(list(sks.prune_partition(paths, coarse, pa.compute.field("k") * 2 == -1))) == 8  # not understood


def test_errors(lake: Path, tmp_path: Path) -> None:
    coarse = sks.coarse(lake, ["k"])
    with pytest.raises(ss.PredicateError, match="nosuch"):
        sks.prune_partition([], coarse, "nosuch = 1")
    with pytest.raises(ss.PredicateError):
        sks.prune_partition([], coarse, "k =")
    with pytest.raises(ss.SchemaError, match="nosuch"):
        sks.coarse(lake, ["nosuch"])
    for columns in ("k", 5):
        with pytest.raises(ss.SchemaError, match="a list of column names"):
            sks.coarse(lake, columns)  # type: ignore[arg-type]
    with pytest.raises(ss.NotATableError):
        sks.coarse(tmp_path, ["k"])
    with pytest.raises(ss.SkipstoneError, match="filter_bytes"):
        sks.coarse(lake, ["k"], filter_bytes=-1)
    with pytest.raises(ss.SkipstoneError, match=r"\.value"):
        sks.prune_partition([], object(), "k = 1")  # type: ignore[arg-type]
    with pytest.raises(ss.SkipstoneError, match="path"):
        list(sks.prune_partition([7], coarse, "k = 1"))  # type: ignore[list-item]


def test_an_executor_loads_neither_spark_nor_a_compiler_nor_a_parser(lake: Path, tmp_path: Path) -> None:
    sent = (_paths(lake), sks.coarse(lake, ["k", "s"]), text_predicate(f"s = '{_scattered(730)}'"))
    (tmp_path / "sent").write_bytes(pickle.dumps(sent))
    code = (
        "import json, pickle, sys\n"
        "from skipstone import spark_adapter as sks\n"
        f"found = list(sks.prune_partition(*pickle.loads(open({str(tmp_path / 'sent')!r}, 'rb').read())))\n"
        "print(json.dumps([found, sorted({'pyspark', 'numba', 'duckdb'} & sys.modules.keys())]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, loaded = json.loads(ran.stdout)
    assert found == [[_paths(lake)[7], [1]]]
    assert loaded == []
