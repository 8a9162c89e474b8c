"""Random histories of Delta and Iceberg tables: each answer at each version is that of the format's own library."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from unittest import mock

import duckdb
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from library_versions import needs
from log_lakes import add_of, delete_rows, iceberg_table, multiset, paths_of, read_delta
from skipstone.engine.scan import lookup

deltalake = pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
from deltalake import DeltaTable, write_deltalake  # noqa: E402

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
    st.builds("lower(p) = 'x' AND a * 2 >= {}".format, NUMBERS),  # tested on rows by DuckDB
    st.builds("a % 3 = 1 OR a = {}".format, NUMBERS),
)


class LogMachine(RuleBasedStateMachine):
    """A subclass writes the table through its own library, and reads it so at any version of its log.

    versions    the version of the log that each of our versions recorded
    pinned      the one that the handle reads
    """

    source: str

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.versions: dict[int, object] = {}

    def make(self, rows: pa.Table) -> Path:
        """Create the table and return its directory."""
        raise NotImplementedError

    def now(self) -> object:
        """The log's latest version."""
        raise NotImplementedError

    def theirs(self, where: str, version: object) -> pa.Table:
        """The rows, as the library reads them."""
        raise NotImplementedError

    def file_count(self, version: object) -> int:
        """The number of live files, as the library counts them."""
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
        rows = multiset(self.theirs("true", self.pinned))
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
        expected = multiset(self.theirs(where, version))
        plan = table.scan(None if where == "true" else where)
        assert multiset(plan.to_table()) == expected
        assert plan.count() == sum(expected.values())

    @invariant()
    def every_file_is_listed(self):
        if self.versions:
            count = self.file_count(self.pinned)
            assert self.table.files().num_rows == count
            assert sum(self.table.partitions().column("file_count").to_pylist()) == count

    def teardown(self):
        shutil.rmtree(self.folder)


class DeltaMachine(LogMachine):
    source = "delta"
    has_vectors = False  # then deltalake itself does not delete

    def make(self, rows):
        options = {"delta.enableDeletionVectors": "true"}
        path = self.folder / "lake"
        write_deltalake(str(path), rows, partition_by=["p"], configuration=options)
        return path

    def now(self):
        return DeltaTable(str(self.path)).version()

    def theirs(self, where, version):
        return read_delta(self.path, where, version)

    def file_count(self, version):
        return pa.table(DeltaTable(str(self.path), version=version).get_add_actions()).num_rows

    @rule(rows=TABLES)
    def append(self, rows):
        write_deltalake(str(self.path), rows, mode="append")

    @rule(rows=TABLES)
    def overwrite(self, rows):
        write_deltalake(str(self.path), rows, mode="overwrite")

    @precondition(lambda self: not self.has_vectors)
    @rule(number=NUMBERS)
    def delete(self, number):
        DeltaTable(str(self.path)).delete(f"a = {number}")

    @precondition(lambda self: not self.has_vectors)
    @rule()
    def compact(self):
        DeltaTable(str(self.path)).optimize.compact()

    @rule()
    def checkpoint(self):
        DeltaTable(str(self.path)).create_checkpoint()

    @rule(pick=st.integers(0, 9), rows=st.sets(st.integers(0, 5), min_size=1))
    def delete_by_vector(self, pick, rows):
        adds = [add_of(self.path, path) for path in paths_of(self.path)]
        adds = [add for add in adds if "deletionVector" not in add]
        adds.sort(key=lambda add: (repr(add["partitionValues"]), add["stats"]))  # names are random
        if adds:
            add = adds[pick % len(adds)]
            count = json.loads(add["stats"])["numRecords"]
            delete_rows(self.path, add["path"], sorted({row % count for row in rows}))
            self.has_vectors = True


TestDelta = needs("deltalake", 1, 4, what="writing to a table with deletion vectors")(DeltaMachine.TestCase)
TestDelta.settings = settings(max_examples=examples(4), stateful_step_count=15, deadline=None)


class IcebergMachine(LogMachine):
    source = "iceberg"

    def make(self, rows):
        self.their = iceberg_table(self.folder, SCHEMA, "p")
        self.their.append(rows)
        return self.folder / "lake" / "t"

    def now(self):
        return self.their.current_snapshot().snapshot_id

    def theirs(self, where, version):
        rows = duckdb.from_arrow(self.their.scan(snapshot_id=version).to_arrow())
        return rows.filter(where).to_arrow_table()

    def file_count(self, version):
        return len(list(self.their.scan(snapshot_id=version).plan_files()))

    @rule(rows=TABLES)
    def append(self, rows):
        self.their.append(rows)

    @rule(rows=TABLES)
    def overwrite(self, rows):
        self.their.overwrite(rows)

    @rule(number=NUMBERS)
    def delete(self, number):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.their.delete(f"a = {number}")

    @rule()
    def merge_manifests(self):
        with self.their.transaction() as change:
            change.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})


TestIceberg = IcebergMachine.TestCase
TestIceberg.settings = settings(max_examples=examples(4), stateful_step_count=12, deadline=None)
