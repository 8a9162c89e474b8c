"""Files and partitions of large tables, by number, by path and from a list, against plain dicts."""

import datetime as dt
import uuid
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import add_files, file_ids
from skipstone.engine import hive
from skipstone.engine.state import lsm
from skipstone.engine.state.paths import first_twice, partitions_of, relative_paths
from skipstone.engine.state.run_format import LEVELS_MAX, MergePolicy
from skipstone.engine.storage import LocalStorage, relative_path

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32())])


def named(numbers: range, partitions: int = 7) -> list[str]:
    generator = np.random.default_rng(numbers.start)
    days = [dt.date(2024, 1, 1) + dt.timedelta(int(i) % partitions) for i in numbers]
    uuids = [uuid.UUID(bytes=generator.bytes(16), version=4) for _ in numbers]
    return [f"day={d}/{u}-0_{i}.parquet" for d, u, i in zip(days, uuids, numbers, strict=True)]


def declared(paths: list[str]) -> pa.Table:
    size = pa.array([100 + len(p) for p in paths], pa.int64())
    return pa.table({"path": pa.array(paths, pa.string()), "size_bytes": size, "row_count": size})


def create(location, paths: list[str]) -> ss.Table:
    return ss.create(location, files=declared(paths), schema=SCHEMA, partitioning=["day"])


class TestCreateFromATable:
    def test_nothing_is_listed_and_nothing_looked_at(self, tmp_path):
        paths = named(range(3000))
        table = create(tmp_path / "lake", paths)
        assert table.version == 1
        assert table.handle.storage.reading().requests == 0
        assert not any(p.name != ".skipstone" for p in (tmp_path / "lake").iterdir())
        assert sorted(table.files()["path"].to_pylist()) == sorted(paths)
        counts = Counter(hive.partition_of(p) for p in paths)
        found = ss.open(tmp_path / "lake").partitions()
        assert dict(zip(found["partition"].to_pylist(), found["file_count"].to_pylist(), strict=True)) == counts
        assert found.schema.field("day").type == pa.date32()

    def test_partitions_are_inferred_and_statistics_taken(self, tmp_path):
        files = declared([f"year=2024/month={i % 3}/f{i}.parquet" for i in range(30)])
        bounds = [{"id": {"min": i, "max": i + 1, "null_count": 0}} for i in range(30)]
        files = files.append_column("stats", pa.array(bounds))
        table = ss.create(tmp_path, files=files, schema=pa.schema([("id", pa.int64())]))
        assert table.schema.names == ["id", "year", "month"]
        assert table.scan(where="id = 7 AND month = 1").files()["path"].to_pylist() == ["year=2024/month=1/f7.parquet"]

    @pytest.mark.parametrize(
        ("files", "options", "error", "why"),
        [
            (declared(["a"]), {}, ss.InvalidArgumentError, "schema="),
            (declared([]), {"schema": SCHEMA}, ss.NotATableError, "no file"),
            (declared(["a", "a"]), {"schema": SCHEMA}, ss.InvalidArgumentError, "twice"),
            (declared(["a", "./a"]), {"schema": SCHEMA}, ss.InvalidArgumentError, "twice"),
            (declared(["a"]).drop_columns(["size_bytes"]), {"schema": SCHEMA}, ss.SchemaError, "size_bytes"),
        ],
    )
    def test_what_is_missing_is_named(self, tmp_path, files, options, error, why):
        with pytest.raises(error, match=why):
            ss.create(tmp_path / "t", files=files, partitioning=None, **options)
        assert not list((tmp_path / "t").rglob("*.json")) if (tmp_path / "t").exists() else True


_DAYS = [f"day={dt.date(2024, 1, 1) + dt.timedelta(day)}" for day in range(9)]
_STEP = st.tuples(st.integers(1, 40), st.sets(st.integers(0, 10**6), max_size=5), st.none() | st.sampled_from(_DAYS))


@settings(max_examples=examples(8), deadline=None)
@given(steps=st.lists(_STEP, min_size=1, max_size=12), data=st.data())
def test_files_by_path_by_number_and_by_partition_after_any_commits(tmp_path_factory, steps, data):
    """Commits add files, and remove some files and a whole partition, which may return."""
    table = create(tmp_path_factory.mktemp("lake"), named(range(50)))
    live, removed, at = file_ids(table), {}, 100
    for count, picks, emptied in steps:
        new = named(range(at, at + count), len(_DAYS))
        old = {sorted(live)[pick % len(live)] for pick in picks if live}
        old |= {path for path in live if hive.partition_of(path) == emptied}
        at += count
        with table.transaction() as tx:
            tx.add_files(declared(new))
            tx.remove(sorted(old))
        removed.update({path: live.pop(path) for path in old})
        live = file_ids(table)
        assert not removed.keys() & live.keys() and set(new) <= live.keys()
    paths = data.draw(st.lists(st.sampled_from([*live, *removed, "day=2024-01-01/none.parquet", "x"]), max_size=8))
    assert ss.open(table.location).handle.snapshot.find(paths) == {path: live[path] for path in paths if path in live}
    for day in _DAYS:
        expected = {path: number for path, number in live.items() if hive.partition_of(path) == day}
        table.handle.forget()
        fresh = ss.open(table.location)  # it finds the partition by its text, and not by a list of all
        if not expected:
            with pytest.raises(ss.InvalidArgumentError, match="no partition"):
                fresh.files(day)
            continue
        inside = fresh.files(day + "/")
        assert inside["partition"].to_pylist() == [day] * len(expected)
        assert dict(zip(inside["path"].to_pylist(), inside["file_id"].to_pylist(), strict=True)) == expected
        assert fresh.files(day).equals(inside) and fresh.files(day).equals(inside)
    assert len(table.handle.instant.manifest) <= LEVELS_MAX


def test_names_of_a_large_table_in_parts(tmp_path):
    """So many files that their names are written part by part, by compiled code, and in more than one form."""
    paths = [f"day=2024-01-01/{uuid.UUID(int=i * 7919 << 60, version=4)}-0_{i}.parquet" for i in range(70_000)]
    paths += [f"day=2024-01-02/part-{i:05d}.parquet" for i in range(70_000)]
    table = create(tmp_path, paths)
    with table.transaction() as tx:
        tx.remove(paths[60_000:60_100])
        tx.add_files(declared(["day=2024-01-02/\u00e4nother", "day=2024-01-03/x"]))
    live = sorted([*paths[:60_000], *paths[60_100:], "day=2024-01-02/\u00e4nother", "day=2024-01-03/x"])
    for fresh in (ss.open(tmp_path), ss.open(tmp_path)):  # the first loads compiled code
        assert sorted(fresh.files(columns=["path"])["path"].to_pylist()) == live
    assert table.files().select(["path", "size_bytes"]) == table.files(columns=["path", "size_bytes"])


@pytest.mark.parametrize("partition", [None, "day=2024-01-02"])
def test_files_in_some_columns_are_those_of_all(tmp_path, partition):
    create(tmp_path, named(range(50)))
    for columns in (["path"], ["kind", "partition", "file_id"], ["row_count", "size_bytes"], []):
        some = ss.open(tmp_path).files(partition, columns)
        assert some == ss.open(tmp_path).files(partition).select(columns)
        assert some.num_rows == ss.open(tmp_path).files(partition).num_rows


def test_a_commit_rewrites_little_and_runs_stay_few(tmp_path, monkeypatch):
    policy = MergePolicy(commit_bytes=4000, levels_max=4)
    monkeypatch.setattr(lsm, "MANIFEST_FORMAT", replace(lsm.MANIFEST_FORMAT, policy=policy))
    table = create(tmp_path, named(range(4000)))
    first = table.handle.instant.manifest[0]
    paths = set(table.files()["path"].to_pylist())
    for i in range(40):
        new = named(range(10_000 + 30 * i, 10_030 + 30 * i))
        add_files(table, declared(new))
        paths |= set(new)
        assert len(table.handle.instant.manifest) <= 4
        assert first in table.handle.instant.manifest
    old = ss.open(tmp_path, version=20)
    before = old.files()["path"].to_pylist()
    table.optimize()
    assert len(table.handle.instant.manifest) <= 2
    assert set(ss.open(tmp_path).files()["path"].to_pylist()) == paths
    assert ss.open(tmp_path, version=20).files()["path"].to_pylist() == before
    version = table.version
    table.optimize()
    assert table.version == version


VALUES = st.sampled_from(["1", "-7", "12", "a", "é", "", "2024-01-01", "a%2Fb", "a=b", hive.NULL_VALUE, "1.5"])


@settings(max_examples=examples(40))
@given(rows=st.lists(st.tuples(VALUES, VALUES), max_size=8), numeric=st.booleans())
def test_values_of_partitions_at_once_are_those_one_by_one(rows, numeric):
    texts = [f"a={a}/b%3D={b}" if "%" in a else f"a={a}/b={b}" for a, b in rows]
    names = ["a", "b"]
    fields = [pa.field("a", pa.int64() if numeric else pa.string()), pa.field(names[1], pa.string())]
    try:
        expected = [c.to_pylist() for c in hive.typed_values(texts, fields)]
    except ss.SchemaError as error:
        with pytest.raises(ss.SchemaError) as caught:
            hive.typed_columns(pa.array(texts, pa.string()), fields)
        assert str(caught.value) == str(error)
        return
    assert [c.to_pylist() for c in hive.typed_columns(pa.array(texts, pa.string()), fields)] == expected


PATHS = st.sampled_from(
    [
        "a",
        "a/b",
        "./a",
        "a//b",
        "a/../b",
        "/abs/x",
        "a/b/",
        ".hidden",
        "x=1/y=2/z.parquet",
        "s3://b/k",
        "é/ü",
        "x=1/z",
        "=/z",
    ]
)


@settings(max_examples=examples(30))
@given(chunks=st.lists(st.lists(PATHS, max_size=5), max_size=3))
def test_many_paths_at_once_are_as_one_by_one(chunks):
    storage = LocalStorage("/lake")
    given_paths = pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks], pa.string())
    plain = [path for chunk in chunks for path in chunk]
    tidy = relative_paths(storage, given_paths)
    assert tidy.to_pylist() == [relative_path(storage, path) for path in plain]
    assert partitions_of(given_paths).to_pylist() == [hive.partition_of(path) for path in plain]
    twice = first_twice(given_paths)
    assert (twice is None) == (len(set(plain)) == len(plain))
    assert twice is None or plain.count(twice) > 1
