"""An Iceberg table that changes by chance, and a handle that follows it: each answer is the library's own."""

from __future__ import annotations

import warnings

import duckdb
import pytest
from example_counts import is_thorough
from hypothesis import settings
from hypothesis.stateful import rule
from log_histories import NUMBERS, SCHEMA, TABLES, LogMachine
from log_lakes import catalog, multiset

pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')


class IcebergMachine(LogMachine):
    source = "iceberg"

    def make(self, rows):
        self.their = catalog(self.folder).create_table("lake.t", SCHEMA)
        with self.their.update_spec() as update:
            update.add_identity("p")
        self.their.append(rows)
        return self.folder / "lake" / "t"

    def now(self):
        return self.their.current_snapshot().snapshot_id

    def theirs(self, where, version):
        rows = duckdb.from_arrow(self.their.scan(snapshot_id=version).to_arrow())
        return multiset(rows.filter(where).select("a", "p").to_arrow_table())

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
TestIceberg.settings = settings(max_examples=200 if is_thorough() else 4, stateful_step_count=12, deadline=None)
