"""The pieces of spark_adapter that need no Spark session: packing, options, and an executor in another process."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import skipstone as ss
from hypothesis import given
from hypothesis import strategies as st
from lake_strategies import declare, file_row, make_file, make_lake
from library_versions import has, needs
from predicate_strategies import predicates, schemas
from skipstone import col
from skipstone.engine.predicates import Node, parse
from skipstone.engine.predicates.ast import as_predicate
from skipstone.spark_adapter.options import Request, decode_predicate, encode_predicate
from skipstone.spark_adapter.shares import Cut, Share, packed, rows_of_shares, share_schema, unpacked
from skipstone.spark_adapter.source import SkipstoneReader, SkipstoneSource
from skipstone.spark_adapter.wire_types import spark_schema, wire_schema

MEGABYTE = 1 << 20


@given(sizes=st.lists(st.integers(0, 2000 * MEGABYTE), max_size=60), parallelism=st.integers(1, 16))
def test_cuts_contain_every_row_group_once_in_few_even_parts(sizes: list[int], parallelism: int) -> None:
    cut = Cut.of(np.array(sizes, dtype=np.int64), parallelism)
    assert [i for part in cut.slices for i in range(part.start, part.stop)] == list(range(len(cut.files)))
    assert all(part.stop > part.start for part in cut.slices)
    assert len(cut.slices) <= max(3 * parallelism, sum(sizes) // (900 * MEGABYTE))
    for file in range(len(sizes)):
        shares = [(n, count) for f, n, count in zip(cut.files, cut.numbers, cut.counts, strict=True) if f == file]
        groups = [group for number, count in shares for group in range(100) if group % count == number]
        assert sorted(groups) == list(range(100))
    weights = np.array([sizes[f] // c + MEGABYTE for f, c in zip(cut.files, cut.counts, strict=True)])
    parts = [int(weights[part].sum()) for part in cut.slices]
    assert all(weight <= sum(parts) / len(parts) + weights.max() for weight in parts)


@pytest.mark.parametrize(
    ("sizes", "parallelism", "count"),
    [
        ([100], 8, 1),  # too little for more than one
        ([MEGABYTE] * 10, 8, 2),
        ([1000] * 10_000, 4, 12),  # opening costs too
        ([900 * MEGABYTE], 4, 12),  # one file is cut
        ([900 * MEGABYTE] * 50, 2, 43),  # or a task would run for minutes
        ([900 * MEGABYTE] * 50_000, 2, 20_000),  # but there are not too many
        ([], 4, 0),
    ],
)
def test_number_of_cuts(sizes: list[int], parallelism: int, count: int) -> None:
    assert len(Cut.of(np.array(sizes, dtype=np.int64), parallelism).slices) == count


@given(data=st.data())
def test_packed_tasks_are_the_tasks(lake_of_many: Path, data: st.DataObject) -> None:
    """For any predicate, any parts, and any number of files that are packed at a time."""
    where = data.draw(st.sampled_from(["k >= 0", "k % 2 = 1 AND p < 3", "u IN (3, 50, 51)", "s = 's3'", "p = 1"]))
    with ss.open(lake_of_many) as table:
        planning = table.scan(where).planning
        tasks = planning.readable_tasks()
        sizes = data.draw(st.lists(st.integers(0, 100 * MEGABYTE), min_size=len(tasks), max_size=len(tasks)))
        cut = Cut.of(np.array(sizes, dtype=np.int64), 2)
        parts = packed(planning, cut, data.draw(st.sampled_from([1, 5, 1 << 20])))
        by_path: dict[str, list[Share]] = {}
        for share in (share for each in parts for share in unpacked(each, share_schema(planning))[0]):
            by_path.setdefault(share.task.path, []).append(share)
    assert list(by_path) == [task.path for task in tasks] != []
    for task in tasks:
        of_file = by_path[task.path]
        assert [(one.number, one.count) for one in of_file] == [(i, len(of_file)) for i in range(len(of_file))]
        for one in of_file:
            assert one.task == task
            assert (one.task.rows is None) == (task.rows is None)
            assert task.rows is None or np.array_equal(one.task.rows, task.rows)


@pytest.fixture(scope="module")
def lake_of_many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    for number in range(12):
        rows = {"k": np.arange(8) + 8 * number, "s": [f"s{v % 5}" for v in range(8)], "u": np.arange(8) + 8 * number}
        value = number % 4 if number % 5 else "__HIVE_DEFAULT_PARTITION__"
        make_file(root, f"p={value}/{number}.parquet", rows, row_group_size=4)
    with ss.create(root) as table:
        table.create_index("s", kind="bloom")
        table.create_index("u", kind="secondary")
    return root


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    tables = ({"k": np.arange(70) + 70 * at, "s": [f"s{value % 5}" for value in range(70)]} for at in range(3))
    root = make_lake(tmp_path / "lake", tables, row_group_size=10)
    with ss.open(root) as table:
        table.create_index("s", kind="bloom")
    return root


def _planned(lake: Path, where: str) -> tuple:
    """(context, tasks) of a scan."""
    with ss.open(lake) as table:
        plan = table.scan(where, ["k"])
        return plan.planning.context, plan.planning.tasks


def _keys(context, shares: list[Share]) -> list[int]:
    return sorted(key for _, rows in rows_of_shares(context, shares) for key in rows.column(0).to_pylist())


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("where", ["k >= 0", "k BETWEEN 15 AND 95", "s = 's3' AND k < 100", "k = 12"])
def test_shares_of_a_file_are_the_file(lake: Path, count: int, where: str) -> None:
    context, tasks = _planned(lake, where)
    found = [k for n in range(count) for k in _keys(context, [Share(task, n, count) for task in tasks])]
    with ss.open(lake) as table:
        expected = sorted(table.scan(where, ["k"]).to_table()["k"].to_pylist())
    assert sorted(found) == expected != []


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_shares_agree_if_one_executor_finds_the_fine_index_damaged(lake: Path, damaged: int) -> None:
    """It keeps all row groups, others keep some: shares by position instead of number would lose rows."""
    context, tasks = _planned(lake, "k BETWEEN 15 AND 95")
    found = []
    for number in range(3):
        if number == damaged:
            for path in (lake / ".skipstone" / "tasks").rglob("*.sbf"):
                path.rename(path.with_suffix(".away"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found += _keys(context, [Share(task, number, 3) for task in tasks])
        assert any("fine index" in str(one.message) for one in caught) == (number == damaged)
        for path in (lake / ".skipstone" / "tasks").rglob("*.away"):
            path.rename(path.with_suffix(".sbf"))
    assert sorted(found) == list(range(15, 96))


@needs("pyspark", 4, 1, what="a data source in Python")
def test_a_fresh_executor_loads_no_compiler_and_reads_no_footer_of_the_index(lake: Path, tmp_path: Path) -> None:
    """Partitions contain all that it needs. Only the index files that they name stay, without their footers."""
    with ss.open(lake) as table:
        schema = spark_schema(wire_schema(table.schema))
    reader = SkipstoneReader(Request(str(lake), where="s = 's3' AND k > 100"), schema)
    partitions = reader.partitions()
    _, tasks = _planned(lake, "s = 's3' AND k > 100")
    named = {path for task in tasks for path, _, _ in task.fine} | {
        file for task in tasks for file, _ in task.filters.values()
    }
    assert len(named) == 2
    for path in (lake / ".skipstone").rglob("*"):
        if path.is_file() and str(path.relative_to(lake / ".skipstone")) not in named:
            path.unlink()
        elif path.is_file():
            path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    with pytest.raises(ss.NotATableError):
        ss.open(lake)
    (tmp_path / "sent").write_bytes(pickle.dumps((reader, partitions)))
    code = f"""
import json, pickle, sys, warnings
warnings.simplefilter('error')  # a damaged fine part only warns
reader, partitions = pickle.load(open({str(tmp_path / "sent")!r}, 'rb'))
keys = [k for p in partitions for b in reader.read(p) for k in b.column(0).to_pylist()]
print(json.dumps([keys, sorted(sys.modules)]))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/")
    keys, modules = json.loads(done.stdout)
    assert sorted(keys) == [key for key in range(101, 210) if (key % 70) % 5 == 3]
    late = {"numba", "duckdb", "pandas", "pyarrow.dataset", "skipstone.engine.table", "skipstone.engine.scan.plan"}
    assert late & set(modules) == set()


def test_pickles_are_small(lake: Path) -> None:
    with ss.open(lake) as table:
        schema = spark_schema(wire_schema(table.schema))
    reader = SkipstoneReader(Request(str(lake), where="k > 5"), schema)
    assert len(pickle.dumps(reader)) < 6_000
    assert len(pickle.dumps(reader.partitions())) < 1_000


def test_options_and_back() -> None:
    request = Request("/lake", where="k = 5", index_path="/index", version=3, parallelism=8)
    assert Request.from_options(request.to_options()) == request
    assert Request.from_options({"PATH": "file:/lake", "Version": "3"}) == Request("/lake", version=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one directory"),
        ({"paths": '["a", "b"]'}, "one directory"),
        ({"path": "a", "filter": "k = 5"}, "option 'filter' is not known"),
        ({"path": "a", "version": "-1"}, "whole number"),
        ({"path": "a", "version": "1.5"}, "whole number"),
        ({"path": "a", "predicate": "AAAA"}, "option 'predicate' is not known"),
        ({"path": "a", "provider": "skipstone", "option.where": "k = 5"}, "without the options .* TEMPORARY"),
        ({"path": "a", "asOf": "2026-01-05T00:00:00Z"}, "not known"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, str], message: str) -> None:
    with pytest.raises(ss.InvalidArgumentError, match=message):
        Request.from_options(options)


@given(node=schemas().flatmap(predicates))
def test_a_predicate_is_encoded_and_decoded(node: Node) -> None:
    assert decode_predicate(encode_predicate(node)) == node


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.int8(), pa.bool_(), pa.string(), pa.large_binary(), pa.string_view(), pa.binary(3), pa.date64()),
        *(pa.timestamp("ns"), pa.timestamp("s", "Europe/Paris"), pa.duration("ms"), pa.time32("s"), pa.time64("ns")),
        *((pa.decimal32(5, 2), pa.decimal64(9, 0)) if has("pyarrow", 19) else ()),
        *(pa.decimal128(38, 10), pa.decimal256(76, 1)),
        *(pa.list_(pa.int8()), pa.list_(pa.int8(), 2), pa.large_list(pa.int8()), pa.list_view(pa.int8())),
        *(pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8()), pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=str,
)
def test_a_cast_is_encoded_and_decoded(kind: pa.DataType) -> None:
    node = parse(pc.field("a").cast(kind).cast(pa.int64()) == 1)
    assert str(kind) in repr(node)
    assert decode_predicate(encode_predicate(node)) == node


class _Malicious:
    def __reduce__(self):
        return print, ("loaded",)


class _Roundabout:
    def __reduce__(self):
        return as_predicate, (True,)  # of our own module, but no part of a tree


@pytest.mark.parametrize(
    "text",
    [
        *(f"skipstone:predicate:{text}" for text in ("", "%%%", "AAAA")),
        *map(encode_predicate, (7, _Malicious(), _Roundabout(), [col("k") == 5], col, pa.array)),
    ],
)
def test_other_objects_than_predicates_are_not_loaded(text: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(ss.PredicateError, match="option where"):
        decode_predicate(text)
    assert capsys.readouterr().out == ""


def test_the_source_pins_the_version(lake: Path) -> None:
    source = pickle.loads(pickle.dumps(SkipstoneSource({"path": str(lake)})))
    with ss.open(lake) as table, table.transaction() as tx:
        tx.remove(["0.parquet"])
    reader = source.reader(source.schema())
    keys = [k for part in reader.partitions() for batch in reader.read(part) for k in batch.column(0).to_pylist()]
    assert sorted(keys) == list(range(210))


def test_slices_with_logs_are_refused(lake: Path) -> None:
    with ss.open(lake) as table:
        declare(table, file_row("log", kind="log", file_group="g", slice_instant="1", merge="whole"))
        schema = spark_schema(wire_schema(table.schema))
    with pytest.raises(ss.NotReadableError, match="log among them"):
        SkipstoneReader(Request(str(lake)), schema).partitions()
