"""delete, update and upsert change exactly the rows that a model, a list of dictionaries, changes."""

from __future__ import annotations

import math
import pkgutil
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.engine.rows_by_key import rewrite
from skipstone.engine.scan import lookup
from skipstone.engine.tasks.spec import TaskSpec
from stats_lakes import once

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.dictionary(pa.int32(), pa.string())),
        ("tags", pa.list_(pa.int64())),
        ("day", pa.int32()),
    ]
)
Row = dict[str, Any]
IDS = [None, *(f"k{i}" for i in range(40))]
FLOATS = [None, math.nan, -0.0, 0.0, 1.5, 7.0]


def _same(left: Any, right: Any) -> bool:
    """Equality of `=`: NaN equals NaN, null equals nothing."""
    return left is not None and right is not None and (left == right or (left != left and right != right))


# A predicate as text, and for which rows it is TRUE.
WHERES: list[tuple[str, Callable[[Row], bool]]] = [
    ("id IN ('k1', 'k7', 'k30')", lambda r: r["id"] in ("k1", "k7", "k30")),
    ("n < 20", lambda r: r["n"] is not None and r["n"] < 20),
    ("NOT (n < 80)", lambda r: r["n"] is not None and r["n"] >= 80),
    ("x = 'nan'::DOUBLE", lambda r: r["x"] is not None and math.isnan(r["x"])),
    ("x = 0", lambda r: r["x"] == 0),
    ("id IS NULL", lambda r: r["id"] is None),
    ("day = 1 AND n % 2 = 0", lambda r: r["day"] == 1 and r["n"] is not None and r["n"] % 2 == 0),
    ("list_contains(tags, 3)", lambda r: r["tags"] is not None and 3 in r["tags"]),
    ("s LIKE 'a%' OR day IS NULL", lambda r: (r["s"] or "").startswith("a") or r["day"] is None),
    ("true", lambda r: True),
    ("n > 1000000", lambda r: False),
]
# New values as texts, and what they are of a row.
VALUES: list[tuple[dict[str, str], Callable[[Row], Row]]] = [
    ({"s": "'closed'"}, lambda r: {"s": "closed"}),
    ({"n": "n + 1", "x": "n"}, lambda r: {"n": _plus(r["n"], 1), "x": None if r["n"] is None else float(r["n"])}),
    ({"id": "NULL"}, lambda r: {"id": None}),
    ({"day": "1 - day"}, lambda r: {"day": None if r["day"] is None else 1 - r["day"]}),
    ({"tags": "[n, 3]"}, lambda r: {"tags": [r["n"], 3]}),
    ({"s": "coalesce(id, 'none')"}, lambda r: {"s": r["id"] or "none"}),
]
INDEXES = [None, ("id", "secondary"), ("id", "bloom"), (["n", "id"], "secondary"), ("x", "secondary")]


def _plus(value: int | None, more: int) -> int | None:
    return None if value is None else value + more


def _row(rng: random.Random) -> Row:
    return {
        "id": rng.choice(IDS),
        "n": rng.choice([None, *range(100)]),
        "x": rng.choice(FLOATS),
        "s": rng.choice([None, "a", "ab", "c"]),
        "tags": rng.choice([None, [], [3], [1, None, 3]]),
        "day": rng.choice([None, 0, 1]),
    }


def _text(row: Row) -> str:
    return repr({name: row.get(name) for name in SCHEMA.names})


class Model:
    """A table, and the rows that it is to have."""

    def __init__(self, root: Path, rng: random.Random, partitioning: list[str]):
        self.rng = rng
        self.rows = [_row(rng) for _ in range(rng.choice([0, 1, 60, 200]))]
        self.table = ss.create(root, schema=SCHEMA, partitioning=partitioning)
        self._write(self.rows)
        index = rng.choice(INDEXES)
        if index is not None:
            self.table.create_index(index[0], kind=index[1], maintain=rng.choice(["commit", "refresh"]))
        later = [_row(rng) for _ in range(rng.choice([0, 30]))]
        self._write(later)
        self.rows += later

    def _write(self, rows: list[Row]) -> None:
        step, group_rows = max(1, len(rows) // 3), self.rng.choice([7, 1000])
        for start in range(0, len(rows), step):
            small_groups = mock.patch.object(TaskSpec, "group_rows", return_value=group_rows)
            with self.table.transaction() as tx, small_groups:
                tx.write(pa.Table.from_pylist(rows[start : start + step], schema=SCHEMA))

    def check(self) -> None:
        for table in (self.table, ss.open(self.table.location)):
            assert sorted(map(_text, table.scan().to_table().to_pylist())) == sorted(map(_text, self.rows))
            for id in ("k1", "k7"):
                assert table.scan(f"id = '{id}'").count() == sum(row["id"] == id for row in self.rows)
        assert self.table.verify(deep=True) == []

    def delete(self) -> None:
        where, matches = self.rng.choice(WHERES[:-2])
        count = sum(map(matches, self.rows))
        foreseen = self.table.delete(where, dry_run=True)
        done = self.table.delete(where)
        assert done.rows_deleted == foreseen.rows_deleted == count
        assert done.files == foreseen.files and done.files_rewritten == len(done.files)
        assert sum(done.files.values()) == count
        self.rows = [row for row in self.rows if not matches(row)]

    def update(self) -> None:
        where, matches = self.rng.choice(WHERES)
        texts, values = self.rng.choice(VALUES)
        count = sum(map(matches, self.rows))
        assert self.table.update(texts, where, dry_run=True).rows_updated == count
        assert self.table.update(texts, where).rows_updated == count
        self.rows = [{**row, **values(row)} if matches(row) else row for row in self.rows]

    def upsert(self) -> None:
        on = self.rng.choice([["id"], ["day", "id"], ["x"]])
        matched, inserted = self.rng.choice(
            [("update", "insert"), ("update", None), ("delete", None), ("delete", "insert"), (None, "insert")]
        )
        given: list[Row] = []
        for row in (_row(self.rng) for _ in range(self.rng.choice([0, 1, 30]))):
            if not any(all(_same(row[name], other[name]) for name in on) for other in given):
                given.append(row)
        names = [*on, *(name for name in SCHEMA.names if name not in on and self.rng.random() < 0.7)]
        names += ["n"] if len(names) == len(on) else []
        source = pa.Table.from_pylist(given, schema=SCHEMA).select(names)
        options = {"when_matched": matched, "when_not_matched": inserted}
        few, dense, pushed = (self.rng.choice(limits) for limits in ([-1, 1024], [0, 1 << 16], [0, 1 << 16]))
        limits = {"FEW_KEYS": few, "DENSE_KEYS_MIN": dense, "_KEYS_PUSHED_MAX": pushed}
        kept = mock.patch.object(rewrite, "_KEY_COLUMNS_BYTES_MAX", self.rng.choice([0, 100, 1 << 20]))
        with mock.patch.multiple(lookup, **limits), kept:
            foreseen = self.table.upsert(source, on, **options, dry_run=True)
            done = self.table.upsert(source, on, **options)
        after, count, met = [], 0, set()
        for row in self.rows:
            number = next((i for i, g in enumerate(given) if all(_same(row[name], g[name]) for name in on)), None)
            if number is None:
                after.append(row)
                continue
            met.add(number)
            count += matched is not None
            if matched != "delete":
                more = {name: given[number][name] for name in names if name not in on} if matched else {}
                after.append({**row, **more})
        inserted_rows = [row for i, row in enumerate(given) if i not in met] if inserted else []
        new = [{name: row[name] if name in names else None for name in SCHEMA.names} for row in inserted_rows]
        assert (done.rows_deleted, done.rows_updated)[matched != "delete"] == count
        assert done.rows_inserted == len(new)
        assert (foreseen.rows_updated, foreseen.rows_deleted, foreseen.rows_inserted, foreseen.files) == (
            (done.rows_updated, done.rows_deleted, done.rows_inserted, done.files)
        )
        self.rows = after + new


@settings(max_examples=examples(4), deadline=None)
@given(seed=st.integers(0, 2**32), partitioning=st.sampled_from([[], ["day"], ["s", "day"]]))
def test_rows_are_those_of_a_list(seed: int, partitioning: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(seed)
    model = Model(tmp_path_factory.mktemp("table"), rng, partitioning)
    for _ in range(4):
        rng.choice([model.delete, model.update, model.upsert])()
        model.check()


# -- rules ------------------------------------------------------------------------------------------------------------


NEW = pa.table({"id": ["new"], "v": [1]})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for number in range(4):
        ids = [f"k{number * 100 + i}" for i in range(100)]
        rows = pa.table({"id": ids, "v": pa.array(range(100), pa.int32()), "old": ids})
        pq.write_table(rows, tmp_path / f"f{number}.parquet", row_group_size=40, compression="gzip")
    return tmp_path


def test_only_files_with_rows_are_rewritten(lake: Path) -> None:
    table = ss.create(lake)
    table.create_index("id", kind="secondary")
    kept = {path for path in table.files()["path"].to_pylist() if path != "f1.parquet"}
    done = table.delete("id IN ('k105', 'k106', 'nowhere')")
    assert (done.rows_deleted, done.files) == (2, {"f1.parquet": 2})
    assert kept < set(table.files()["path"].to_pylist())
    assert set(table.indexes()["files_covered"].to_pylist()) == {4}  # every index has the new file
    new = next(path for path in table.files()["path"].to_pylist() if path not in kept)
    assert pq.ParquetFile(lake / new).metadata.row_group(0).column(0).compression == "GZIP"


def test_no_row_no_version(lake: Path) -> None:
    table = ss.create(lake)
    for done in (
        table.delete("id = 'nowhere'"),
        table.update({"v": "1"}, "id = 'nowhere'"),
        table.upsert(pa.table({"id": ["nowhere"], "v": [1]}), on="id", when_not_matched=None),
        table.upsert(pa.table({"id": ["k1"], "v": [1]}), on="id", when_matched=None),
        table.upsert(pa.table({"id": pa.array([], pa.string()), "v": pa.array([], pa.int32())}), on="id"),
    ):
        assert done == ss.open(lake).delete("id = 'nowhere'", dry_run=True)
    assert table.version == ss.open(lake).version == 1


def test_a_key_of_a_file_whose_rows_all_go_is_not_inserted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "v": [1]}), tmp_path / "one.parquet")
    table = ss.create(tmp_path)
    table.create_index("id", kind="secondary")
    done = table.upsert(pa.table({"id": ["a", "b"], "v": [5, 6]}), on="id", when_matched="delete")
    assert (done.rows_deleted, done.rows_inserted) == (1, 1)
    assert table.scan().to_table().to_pylist() == [{"id": "b", "v": 6}]


def test_indexes_cover_many_rows_that_are_written_again(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit sorts their keys, or copies their entries; what it lacks follows, and a failure there undoes no
    change."""
    from skipstone.engine.rows_by_key import exchange

    monkeypatch.setattr(exchange, "_BULK_ROWS", 100)
    table = ss.create(lake)
    table.create_index("id", kind="secondary")
    table.create_index("v", kind="bloom")
    before = table.version
    assert table.delete("id IN ('k105', 'k205')").version == before + 1
    assert set(table.indexes()["files_covered"].to_pylist()) == {table.files().num_rows}
    assert table.verify(deep=True) == []

    def fail(*_: Any, **__: Any) -> None:
        raise ss.StorageError("the disk is full")

    monkeypatch.setattr(exchange, "refresh_all", fail)
    with pytest.warns(ss.SkipstoneWarning, match="committed.*disk is full"):
        table.upsert(pa.table({"id": ["k7", "new"], "v": [5, 6]}), on="id")
    assert ss.open(lake).scan("id IN ('k7', 'k105', 'new')").to_table().sort_by("v")["v"].to_pylist() == [5, 6]


@pytest.mark.parametrize("kept_bytes", [0, 500, 1 << 20])
def test_files_without_a_key_stay_and_key_columns_are_read_once(
    lake: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    """The keys of a file are compared before it is written again. They are read again only if they were too large."""
    monkeypatch.setattr(rewrite, "_KEY_COLUMNS_BYTES_MAX", kept_bytes)
    monkeypatch.setattr(lookup, "FEW_KEYS", -1)
    monkeypatch.setattr(lookup, "_KEYS_PUSHED_MAX", 0)
    monkeypatch.setattr(lookup, "DENSE_KEYS_MIN", 0)
    table = ss.create(lake)
    table.create_index("id", kind="secondary")
    table.create_index("v", kind="secondary")
    read: list[tuple[str, ...]] = []
    real = rewrite.matches_in_file

    def noted(task: Any, groups: Any, context: Any, data: Any) -> Any:
        read.append(context.columns)
        return real(task, groups, context, data)

    monkeypatch.setattr(rewrite, "matches_in_file", noted)
    done = table.upsert(pa.table({"id": ["k199", "new", "k350", "k140"], "v": [-1, -2, -3, -4]}), on="id")
    assert (done.files, done.rows_updated, done.rows_inserted) == ({"f1.parquet": 2, "f3.parquet": 1}, 3, 1)
    others = ("v", "old") if kept_bytes > 500 else ("id", "v", "old")
    assert sorted(read) == sorted([("id",)] * 4 + [others] * 2)
    expected = {f"k{i}": i % 100 for i in range(400)} | {"k199": -1, "new": -2, "k350": -3, "k140": -4}
    rows = table.scan().to_table().to_pylist()
    assert {row["id"]: row["v"] for row in rows} == expected and len(rows) == 401
    assert all(row["old"] == (None if row["id"] == "new" else row["id"]) for row in rows)
    for id, v in (("k199", -1), ("k141", 41), ("k140", -4)):
        assert table.scan(f"id = '{id}' AND v = {v}").count() == 1
    assert table.verify(deep=True) == []


def test_a_retry_with_the_key_changes_nothing(lake: Path) -> None:
    table = ss.create(lake)
    first = table.update({"v": "v + 1"}, "true", key="job 7")
    again = ss.open(lake).update({"v": "v + 1"}, "true", key="job 7")
    assert (again.version, again.rows_updated) == (first.version, 0)
    assert ss.open(lake).scan().max("v") == 100


@pytest.mark.parametrize("is_same_handle", [False, True])
@pytest.mark.parametrize(
    ("step", "own", "other", "count"),
    [
        ("verbs.rewrite", lambda t: t.update({"v": "-1"}, "id = 'k8'"), lambda t: t.delete("id = 'k7'"), 399),
        ("exchange.OwnWriter", lambda t: t.upsert(NEW, on="id"), lambda t: t.upsert(NEW, on="id"), 401),
        ("verbs._Work", lambda t: t.upsert(NEW, on="id"), lambda t: t.upsert(NEW, on="id"), 401),
    ],
    ids=["two writers of one file", "two upserts of one new key", "the same, after the first is planned"],
)
def test_rule_01_another_writer_is_a_conflict(
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    own: Callable,
    other: Callable,
    count: int,
    is_same_handle: bool,
) -> None:
    """Another commit during a step: nothing of this change is committed, and it leaves no files."""
    table, step = ss.create(lake), f"skipstone.engine.rows_by_key.{step}"
    real = pkgutil.resolve_name(step)

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(step, real)
        other(table if is_same_handle else ss.open(lake))
        return real(*arguments, **options)

    monkeypatch.setattr(step, meanwhile)
    with pytest.raises(ss.CommitConflictError):
        own(table)
    now = ss.open(lake)
    assert (now.scan().count(), now.scan("v = -1").count()) == (count, 0)
    assert {path.name for path in lake.glob("part-*")} <= set(now.files()["path"].to_pylist())


def test_a_handle_works_on_the_newest_version(lake: Path) -> None:
    table = ss.create(lake)
    with ss.open(lake).transaction() as tx:
        tx.write(pa.table({"id": ["k7"], "v": [500]}))
    assert table.delete("id = 'k7'").rows_deleted == 2


def test_files_of_columns_that_changed(lake: Path) -> None:
    table = ss.create(lake)
    table.alter(rename={"v": "value"}, add={"extra": pa.scalar(5, pa.int64())}, drop="old", widen={"v": pa.int64()})
    table.update({"value": "value + 3000000000"}, "id = 'k105'")
    assert table.scan("id = 'k105'").to_table().to_pylist() == [{"id": "k105", "value": 3000000005, "extra": 5}]
    assert table.scan("extra = 5").count() == 400


def test_views_as_polars_has_them(tmp_path: Path) -> None:
    """Arrow takes no rows of views."""
    view, keys = pa.string_view(), ["a", "b", "c"]
    nested = [{"t": "x", "l": ["y"], "m": [("z", None)]}, None, {"t": None, "l": [], "m": []}]

    def kind(text: pa.DataType) -> pa.DataType:
        return pa.struct([("t", text), ("l", pa.large_list(text)), ("m", pa.map_(text, text))])

    rows = pa.table({"k": pa.array(keys, view), "s": pa.array(nested, kind(view)), "e": pa.array(keys)})
    pq.write_table(rows.slice(0, 2), tmp_path / "a.parquet")
    pq.write_table(rows.slice(2).set_column(1, "s", pa.array(nested[2:], kind(pa.string()))), tmp_path / "b.parquet")
    table = ss.create(tmp_path)
    assert table.schema.field("s").type == kind(pa.string())
    assert table.scan(order_by=("k", "desc"), limit=2).to_table()["s"].to_pylist() == [nested[2], None]
    enum = pa.DictionaryArray.from_arrays([1, 2, 0], pa.array(["a", "b", "new"], view))
    with table.transaction() as transaction:
        transaction.write(rows.set_column(0, "k", pa.array(["d", "e", "f"])).set_column(2, "e", enum))
    found = table.upsert(rows.set_column(0, "k", pa.array(["d", "g", "h"], view)).set_column(2, "e", enum), "k")
    assert (found.rows_updated, found.rows_inserted) == (1, 2)
    assert table.upsert(rows.select(["s"]).append_column("e", enum), "e").rows_updated == 7
    assert table.delete("k < 'd'").rows_deleted == 3
    assert table.update({"k": "k || '2'"}, "s.t IS NULL").rows_updated == 4
    left = table.scan(order_by="k").to_table()
    assert left["k"].to_pylist() == ["d", "e2", "f2", "g2", "h2"]
    assert left["e"].to_pylist() == ["b", "new", "a", "new", "a"]
    assert left["s"].to_pylist() == [nested[0], None, nested[2], None, nested[2]]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.delete(None), ss.InvalidArgumentError, "true"),
        (lambda t: t.delete("nope = 1"), ss.PredicateError, "nope"),
        (lambda t: t.update({}, "true"), ss.InvalidArgumentError, "SQL expression"),
        (lambda t: t.update({"nope": "1"}, "true"), ss.SchemaError, "nope"),
        (lambda t: t.update({"v": 1}, "true"), ss.InvalidArgumentError, "quotes"),
        (lambda t: t.update({"v": "sum(v)"}, "true"), ss.PredicateError, "sum"),
        (lambda t: t.update({"v": "(SELECT 1)"}, "true"), ss.PredicateError, "subquery"),
        (lambda t: t.update({"v": "v * 1000000000"}, "true"), ss.PredicateError, "INT32"),
        (lambda t: t.update({"v": "random()"}, "true"), ss.PredicateError, "random"),
        (lambda t: t.upsert(pa.table({"id": ["a", "a"], "v": [1, 2]}), "id"), ss.InvalidArgumentError, "'a'"),
        (lambda t: t.upsert(pa.table({"id": ["a"]}), "id"), ss.InvalidArgumentError, "nothing to update"),
        (lambda t: t.upsert(pa.table({"id": ["a"], "w": [1]}), "id"), ss.SchemaError, "w"),
        (lambda t: t.upsert(pa.table({"id": ["a"], "v": [2**40]}), "id"), ss.SchemaError, "v"),
        (lambda t: t.upsert(pa.table({"v": [1]}), "id"), ss.SchemaError, "id"),
        (lambda t: t.upsert([{"id": "a"}], "id"), ss.InvalidArgumentError, "Arrow"),
        (lambda t: t.upsert(pa.table({"id": ["a"]}), "id", when_matched="replace"), ss.InvalidArgumentError, "update"),
        (
            lambda t: t.upsert(pa.table({"id": ["a"]}), "id", when_matched=None, when_not_matched=None),
            ss.InvalidArgumentError,
            "does nothing",
        ),
        (lambda t: ss.open(t.location, version=1).delete("true"), ss.InvalidArgumentError, "version 1"),
    ],
)
def test_refused(lake: Path, change: Callable[[ss.Table], object], error: type[Exception], message: str) -> None:
    table = ss.create(lake)
    with pytest.raises(error, match=message):
        change(table)
    assert ss.open(lake).version == 1 and ss.open(lake).scan().count() == 400
    assert not list(lake.glob("part-*"))


def test_a_file_with_a_column_that_the_table_does_not_read_is_refused(lake: Path) -> None:
    table = ss.create(lake)
    rows = table.scan().to_table().slice(0, 2)
    pq.write_table(rows.append_column("new", pa.array([1, 2])), lake / "more.parquet")
    with table.transaction() as transaction:
        transaction.add_files(["more.parquet"])
    with pytest.raises(ss.SchemaError, match=r"more\.parquet.*new.*sync"):
        table.delete("TRUE")
    table.sync()
    table.alter(drop=["new"])
    assert table.delete("TRUE").rows_deleted > 0 and table.scan().count() == 0
    table.alter(rename={"v": "w"})
    pq.write_table(rows, lake / "with_the_old_name.parquet")
    table.sync()
    with pytest.raises(ss.SchemaError, match=r"old_name\.parquet.*: v; .*replace"):
        table.delete("id = 'k0'")


def test_an_overwritten_file_is_refused(lake: Path) -> None:
    table = ss.create(lake)
    pq.write_table(pa.table({"id": ["k0"] * 100, "v": pa.array(range(100), pa.int32())}), lake / "f0.parquet")
    with pytest.raises(ss.NotReadableError, match=r"f0\.parquet"):
        table.delete("id = 'k5'")
    assert ss.open(lake).version == 1


def test_rule_01_a_file_that_is_replaced_at_its_path_while_the_handle_moves_keeps_its_rows(lake: Path) -> None:
    table = ss.create(lake)

    def replace_file() -> None:
        pq.write_table(pa.table({"id": ["later"], "v": pa.array([1], pa.int32())}), lake / "f0.parquet")
        table.sync()

    with pytest.raises(ss.CommitConflictError, match=r"f0\.parquet"):
        table.delete("id = 'k5'", progress=once(replace_file))
    assert ss.open(lake).scan("id = 'later'").count() == 1


def test_a_folder_with_deleted_rows_is_not_indexed_again_unasked(lake: Path) -> None:
    """Without the index its old files would count again: also if a lost index is replaced by a listing."""
    table = ss.create(lake)
    marker = lake / "_skipstone_table.json"
    table.delete("id = 'nowhere'")
    assert not marker.exists()
    table.delete("id = 'k5'")
    assert table.handle.instant.table_id in marker.read_text()
    ss.open(lake).sync()
    shutil.rmtree(lake / ".skipstone")
    for again in (lambda: ss.create(lake), lambda: ss.open(lake, fallback="list")):
        with pytest.raises(ss.InvalidArgumentError, match=r"count again.*Restore the index.*ignore_deletes=True"):
            again()
    assert ss.create(lake, ignore_deletes=True).scan("id = 'k5'").count() == 1


def test_progress_counts_files(lake: Path) -> None:
    calls: list[tuple[str, int, int | None]] = []
    ss.create(lake).update({"v": "0"}, "v = 7", progress=lambda *call: calls.append(call))
    assert [call for call in calls if call[0] == "rewrite, files"] == [("rewrite, files", n, 4) for n in (1, 2, 3, 4)]
