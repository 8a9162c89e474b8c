"""Scans against brute force: random lakes, changes, indexes and predicates. No row is lost, none is added."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import lakes, simple_predicates
from oracle import check_scan
from predicate_strategies import predicates


@given(st.data())
@settings(max_examples=examples(10, 2000))
def test_a_scan_gives_exactly_the_rows_that_match(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        table, lake = data.draw(lakes(root))
        fresh = ss.open(root)
        for handle in (table, fresh):
            node = data.draw(predicates(handle.schema))
            check_scan(handle, lake.versions[handle.version], node, node)
        assert fresh.verify(deep=True) == []


@given(st.data())
@settings(max_examples=examples(4))
def test_every_form_of_a_predicate_gives_the_same_rows(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        table, lake = data.draw(lakes(root, max_actions=2))
        for where, node in data.draw(simple_predicates(table.schema)).values():
            check_scan(table, lake.versions[table.version], where, node)


@given(st.data())
@settings(max_examples=examples(4))
def test_every_version_keeps_its_own_rows(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        table, lake = data.draw(lakes(root, max_actions=6))
        node = data.draw(predicates(table.schema))
        times = dict(zip(*table.history().select(["version", "time"]).to_pydict().values(), strict=True))
        assert sorted(times) == sorted(lake.versions) == list(range(1, table.version + 1))
        for version, live in lake.versions.items():
            check_scan(ss.open(root, version=version), live, node, node)
            assert ss.open(root, as_of=times[version]).version == version
            assert set(ss.open(root, version=version).files().column("path").to_pylist()) == set(live)


def test_fields_of_structs_are_columns_by_their_paths(tmp_path: Path) -> None:
    payload = [{"user": "a", "at": {"x": 1}}, None, {"user": None, "at": None}, {"user": "b", "at": {"x": 4}}]
    pq.write_table(pa.table({"id": range(4), "payload": payload, "a.b": [5, 6, 7, 8]}), tmp_path / "f.parquet")
    table = ss.create(tmp_path)
    plan = table.scan("id < 3", columns=["payload.at.x", "id", "payload.user", "a.b"])
    assert plan.schema.names == list(plan.columns) == ["payload.at.x", "id", "payload.user", "a.b"]
    assert plan.schema.types == [pa.int64(), pa.int64(), pa.string(), pa.int64()]
    wanted = {"payload.at.x": [1, None, None], "id": [0, 1, 2], "payload.user": ["a", None, None], "a.b": [5, 6, 7]}
    assert plan.to_table().to_pydict() == wanted
    assert plan.head(1).to_pydict() == {name: values[:1] for name, values in wanted.items()}
    assert pickle.loads(pickle.dumps(plan)).to_table().to_pydict() == wanted
    assert plan.dataset().to_table(columns=["payload.user"], filter=pc.field("id") == 0).to_pydict() == {
        "payload.user": ["a"]
    }
    assert table.scan("id > 9", columns="payload.user").to_table().schema.names == ["payload.user"]
    assert table.lookup([3], on="id", columns=["payload.user"]).to_table().to_pydict() == {"payload.user": ["b"]}
    ordered = table.scan(order_by=("payload.at.x", "desc"), limit=2, columns=["payload.user"])
    assert ordered.to_table().to_pydict() == {"payload.user": ["b", "a"]}
    for columns in (["payload.no"], ["payload.user", "payload.user"], ["id.x"], ["no"], [3]):
        with pytest.raises(ss.SchemaError):
            table.scan(columns=columns)
