"""A Delta table that changes by chance, and a handle that follows it, or does not: each answer is the library's own."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from example_counts import is_thorough
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from library_versions import needs
from log_histories import NUMBERS, TABLES, LogMachine
from log_lakes import add_of, delete_rows, multiset, paths_of

pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
from deltalake import DeltaTable, QueryBuilder, write_deltalake


class DeltaMachine(LogMachine):
    source = "delta"
    has_vectors = False  # over which deltalake itself does not write

    def make(self, rows):
        options = {"delta.enableDeletionVectors": "true"}
        path = self.folder / "lake"
        write_deltalake(str(path), rows, partition_by=["p"], configuration=options)
        return path

    def now(self):
        return DeltaTable(str(self.path)).version()

    def theirs(self, where, version):
        their = DeltaTable(str(self.path), version=version)
        found = QueryBuilder().register("t", their).execute(f"select a, p from t where {where}")
        return multiset(pa.table(found.read_all()))

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
        adds.sort(key=lambda add: (repr(add["partitionValues"]), add["stats"]))  # names are given by chance
        if adds:
            add = adds[pick % len(adds)]
            count = json.loads(add["stats"])["numRecords"]
            delete_rows(self.path, add["path"], sorted({row % count for row in rows}))
            self.has_vectors = True


TestDelta = needs("deltalake", 1, 4, what="writing to a table with deletion vectors")(DeltaMachine.TestCase)
TestDelta.settings = settings(max_examples=200 if is_thorough() else 4, stateful_step_count=15, deadline=None)
