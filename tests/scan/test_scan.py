"""Scans against brute force: random lakes, changes, indexes and predicates. No row is lost, none is added."""

from __future__ import annotations

import tempfile

import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import lakes, simple_predicates
from oracle import check_scan
from predicate_strategies import predicates


@given(st.data())
@settings(max_examples=examples(20, 2000))
def test_a_scan_gives_exactly_the_rows_that_match(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        table, lake = data.draw(lakes(root))
        fresh = ss.open(root)
        for handle in (table, fresh):
            node = data.draw(predicates(handle.schema))
            check_scan(handle, lake.versions[handle.version], node, node)
        assert fresh.verify(deep=True) == []


@given(st.data())
@settings(max_examples=examples(8))
def test_every_form_of_a_predicate_gives_the_same_rows(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        table, lake = data.draw(lakes(root, max_actions=2))
        for where, node in data.draw(simple_predicates(table.schema)).values():
            check_scan(table, lake.versions[table.version], where, node)


@given(st.data())
@settings(max_examples=examples(8))
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
