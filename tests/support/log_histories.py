"""A table of another format that changes by chance, and a handle that follows its log, or does not."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import pyarrow as pa
import skipstone as ss
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from log_lakes import multiset
from skipstone.engine.scan import lookup

SCHEMA = pa.schema([("a", pa.int64()), ("p", pa.string())])
NUMBERS = st.integers(-3, 6)
_PARTITIONS = st.sampled_from(["x", "y/=", None, "é%"])
_ROWS = st.lists(st.tuples(st.one_of(st.none(), NUMBERS), _PARTITIONS), min_size=1, max_size=6)
TABLES = st.builds(lambda rows: pa.table([[a for a, _ in rows], [p for _, p in rows]], schema=SCHEMA), _ROWS)
WHERES = st.one_of(
    st.builds("a = {}".format, NUMBERS),
    st.builds("a >= {} AND p = 'x'".format, NUMBERS),
    st.builds("NOT (a < {} OR p IS NULL)".format, NUMBERS),
    st.builds("a != {}".format, NUMBERS),
    st.builds("a IN ({}, {}) OR a IS NULL".format, NUMBERS, NUMBERS),
    st.sampled_from(["p IS NULL", "a IS NULL", "p <> 'x'", "true"]),
)


class LogMachine(RuleBasedStateMachine):
    """Who inherits writes the table through its own library, and reads it so at any of its versions.

    versions    which version of the log each version of ours recorded
    pinned      which one the handle reads
    """

    source: str

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.versions: dict[int, object] = {}

    def make(self, rows: pa.Table) -> Path:
        """Makes the table and returns its directory."""
        raise NotImplementedError

    def now(self) -> object:
        """The log's latest version."""
        raise NotImplementedError

    def theirs(self, where: str, version: object) -> Counter:
        """The rows, as the library reads them."""
        raise NotImplementedError

    def file_count(self, version: object) -> int:
        """How many files are live, as the library says."""
        raise NotImplementedError

    @initialize(rows=TABLES, kinds=st.sets(st.sampled_from(["bloom", "secondary"])))
    def begin(self, rows, kinds):
        self.path = self.make(rows)
        self.table = ss.create(self.path, source=self.source, index_path=self.folder / "index")
        self.pinned = self.versions[1] = self.now()
        for kind in sorted(kinds):
            self.versions[self.table.create_index("a", kind=kind)] = self.pinned

    @rule()
    def sync(self):
        before = self.table.version
        version = self.table.sync()
        if version == before:
            assert self.versions[version] == self.now()
        self.versions[version] = self.pinned = self.now()
        assert self.table.sync() == version

    @rule()
    def refresh(self):
        self.table.refresh()
        self.pinned = self.now()

    @rule()
    def reopen(self):
        self.table = ss.open(self.path, index_path=self.folder / "index")
        self.pinned = self.now()

    @rule(kind=st.sampled_from(["bloom", "secondary"]))
    def refresh_index(self, kind):
        if f"{kind}(a)" in self.table.indexes().column("name").to_pylist():
            self.versions[self.table.refresh_index("a", kind=kind)] = self.versions[max(self.versions)]

    @rule(
        keys=st.lists(NUMBERS, max_size=4),
        are_many=st.booleans(),
        reader=st.sampled_from(["pyarrow", "duckdb"]),
        share=st.sampled_from([0.01, 9.0]),
    )
    def look_up(self, keys, are_many, reader, share):
        rows = self.theirs("true", self.pinned)
        wanted = Counter({row: count for row, count in rows.items() if row[0] in map(repr, keys)})
        with mock.patch.multiple(lookup, FEW_KEYS=-1 if are_many else 1024, SPREAD_SHARE=share):
            found = self.table.lookup(pa.array(keys, pa.int64()), on="a", reader=reader)
            assert multiset(found.to_table()) == wanted
            assert found.count() == sum(wanted.values())

    @rule(data=st.data(), where=WHERES)
    def travel(self, data, where):
        version = data.draw(st.sampled_from(sorted(self.versions)))
        with ss.open(self.path, version=version, index_path=self.folder / "index") as table:
            self._compare(table, where, self.versions[version])

    @rule(where=WHERES)
    def scan(self, where):
        self._compare(self.table, where, self.pinned)

    def _compare(self, table, where, version):
        expected = self.theirs(where, version)
        plan = table.scan(None if where == "true" else where)
        assert multiset(plan.to_table()) == expected
        assert plan.count() == sum(expected.values())

    @invariant()
    def every_file_is_told(self):
        if self.versions:
            count = self.file_count(self.pinned)
            assert self.table.files().num_rows == count
            assert sum(self.table.partitions().column("file_count").to_pylist()) == count

    def teardown(self):
        shutil.rmtree(self.folder)
