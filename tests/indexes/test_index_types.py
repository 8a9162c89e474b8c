"""Indexes of every type against plain loops: built, committed and merged runs in one index, asked for anything.

Filters and secondary indexes, without statistics of the columns that are asked for. Runs are spilled while they are
sorted, cut into shards and written by several threads, as those of large tables are."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import file_tables
from oracle import check_scan, file_groups
from predicate_strategies import COLUMN_TYPES, _key, leaves, predicates, rows_of, tables
from skipstone.base import canon
from skipstone.base.ordered_keys import ordered_class
from skipstone.engine.indexes.bloom import coarse_groups, merge, task_filters
from skipstone.engine.indexes.bloom import format as filter_format
from skipstone.engine.indexes.secondary import build, format, sort
from skipstone.engine.predicates import ast
from skipstone.engine.predicates import literals as operands
from skipstone.engine.scan import lookup
from skipstone.engine.state import lsm
from skipstone.engine.storage import LocalStorage, wrappers

# A struct has no filter; Parquet has no seconds, and its files contain milliseconds.
FILTERED = {name: kind for name, kind in COLUMN_TYPES.items() if name not in ("inner", "ts_s")}
KEYS = {name: kind for name, kind in FILTERED.items() if ordered_class(kind) is not None}
ALWAYS, NEVER = 0, 1 << 30


@contextmanager
def _folder() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp())
    try:
        yield root
    finally:
        shutil.rmtree(root)


def _write(root: Path, path: str, rows: pa.Table, group_rows: int) -> None:
    pq.write_table(rows, root / path, row_group_size=group_rows)


def _lake(data: st.DataObject, root: Path, names: list[str], kind: str, **options: object) -> ss.Table:
    """A table of some columns, and another that alone has statistics; its runs come from builds, from commits and from
    merges."""
    schema = pa.schema([*((name, FILTERED[name]) for name in names), ("other", pa.int64())])
    group_rows = data.draw(st.integers(1, 6))
    _write(root, "0.parquet", data.draw(tables(schema, 12)), group_rows)
    for number in range(1, data.draw(st.integers(1, 3))):
        _write(root, f"{number}.parquet", data.draw(file_tables(schema, 12)), group_rows)
    table = ss.create(root, columns=["other"])
    table.create_index(names, kind=kind, **options)
    for number in range(data.draw(st.integers(0, 4))):
        what = data.draw(st.sampled_from(["write", "write", "sync", "refresh", "remove", "optimize"]))
        if what == "write":
            with table.transaction() as tx:
                tx.write(data.draw(tables(table.schema, 12)))
        elif what == "sync":
            _write(root, f"later-{number}.parquet", data.draw(tables(schema, 12)), group_rows)
            table.sync()
        elif what == "refresh":
            table.refresh_index(names, kind=kind)
        elif what == "remove" and table.files().num_rows > 1:
            with table.transaction() as tx:
                tx.remove(table.files()["path"].to_pylist()[:1])
        else:
            assert table.optimize() == table.optimize(), "a second one has nothing to do"
    return table


def _check(data: st.DataObject, table: ss.Table, names: list[str], asked: list[ast.Node]) -> dict:
    root = Path(table.location)
    live = {path: file_groups(str(root), path, table.schema, []) for path in table.files()["path"].to_pylist()}
    there = [value for path in live for value in _values(root / path, names[0], FILTERED[names[0]])]
    if there:
        column = operands.Column(names[0])
        one, other = (operands.Literal(data.draw(st.sampled_from(there))) for _ in range(2))
        asked += [ast.Comparison(op, column, one) for op in ("=", "<=>", "!=")]
        asked.append(ast.In(column, (one, other), False))
    for node in asked:
        check_scan(table, live, node, node)
        check_scan(table, live, ast.Not(node), ast.Not(node))
    return live


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("name", FILTERED)
@settings(max_examples=examples(2))
@given(data=st.data())
def test_no_filter_of_any_type_loses_a_row(name: str, data: st.DataObject) -> None:
    least = data.draw(st.sampled_from([1, 2, 100]), label="row groups from which a filter over the file is kept")
    with _folder() as root, warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_filters, "has_file_level", lambda row_groups, fpp: row_groups >= least)
        warnings.simplefilter("ignore")  # files without filters, or of a type that has none
        policy = replace(merge.POLICY, commit_bytes=data.draw(st.sampled_from([1 << 10, 512 << 20])))
        patch.setattr(merge, "POLICY", replace(policy, small_bytes=data.draw(st.sampled_from([1, 16 << 20]))))
        for module, name_, values in (  # so small that runs, groups and reads are cut in each way
            (merge, "RUN_BYTES_MAX", (2_000, 1 << 30)),
            (merge, "MEMBERS_MAX", (1, 3, 1 << 15)),
            (merge, "CHUNK_BYTES", (1, 1 << 24)),
            (filter_format, "MEMBERS_MAX", (2, 1024)),
            (coarse_groups, "PIECE_BYTES", (1, 1 << 22)),
            (coarse_groups, "BATCH_BYTES", (1, 1 << 24)),
        ):
            patch.setattr(module, name_, data.draw(st.sampled_from(values), label=name_))
        table = _lake(data, root, [name], "bloom", fpp=data.draw(st.sampled_from([None, 0.1, 0.01, 1e-6])))
        _check(data, table, [name], [data.draw(leaves(pa.schema([table.schema.field(name)]))) for _ in range(2)])
        assert {finding.kind for finding in table.verify(deep=True)} <= {"quarantined"}


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("name", KEYS)
@settings(max_examples=examples(2))
@given(data=st.data())
def test_no_secondary_index_of_any_type_loses_a_row_or_adds_one(name: str, data: st.DataObject) -> None:
    names = [name, *data.draw(st.lists(st.sampled_from(sorted(KEYS.keys() - {name})), max_size=1))]
    memory_bytes = data.draw(st.sampled_from([1, 500, 1 << 20]), label="bytes that wait to be sorted")
    policy = replace(format.POLICY, commit_bytes=data.draw(st.sampled_from([1, 4 << 20])))
    with _folder() as root, warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # files of a type that cannot be a key
        patch.setattr(build, "MEMORY_BYTES", memory_bytes)
        patch.setattr(build, "machine_memory_bytes", lambda: memory_bytes)
        patch.setattr(build, "_TASK_ROWS", data.draw(st.sampled_from([5, 1 << 19])))
        patch.setattr(sort, "PART_MEMORY_BYTES", memory_bytes)
        patch.setattr(format, "POLICY", policy)
        patch.setattr(lsm, "MEMORY_ENTRIES", data.draw(st.sampled_from([1, 1 << 17])))
        patch.setattr(lsm, "_ENTRIES_OF_A_THREAD", data.draw(st.sampled_from([ALWAYS, NEVER])))
        patch.setattr(wrappers, "GATHERED_BYTES_MAX", 500)
        patch.setattr(LocalStorage, "is_remote", data.draw(st.booleans()))  # then runs are read side by side
        table = _lake(data, root, names, "secondary", shard_bytes=data.draw(st.sampled_from([300, 1 << 20])))
        keys = pa.schema([table.schema.field(one) for one in names])
        live = _check(data, table, names, [data.draw(predicates(keys)) for _ in range(2)])
        assert table.verify(deep=True) == []
        _check_lookup(data, table, keys, live)


def _check_lookup(data: st.DataObject, table: ss.Table, keys: pa.Schema, live: dict) -> None:
    """A look-up of many keys finds each row that has one of them, and no other."""
    wanted = data.draw(tables(keys, 6))

    def key(row: dict) -> tuple | None:
        values = [row[name] for name in keys.names]
        return None if None in values else tuple(_key(value, value) for value in values)

    rows = [row for groups in live.values() for group in groups for row in group]
    known = {key(row) for row in rows_of(wanted)} - {None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "FEW_KEYS", -1)
        patch.setattr(lookup, "SPREAD_SHARE", 9.0)
        assert table.lookup(wanted).count() == sum(key(row) in known for row in rows)


def _values(path: Path, name: str, kind: pa.DataType) -> list[object]:
    """The values in a file, as literals of the column's type."""
    rows = pq.read_table(path)
    if name not in rows.column_names:
        return []
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = list(rows.column(name).cast(plain))
    return values if pa.types.is_temporal(plain) else [value.as_py() for value in values]


def test_every_type_that_hashes_is_tried() -> None:
    assert all(canon.hash_name(kind) is not None for kind in FILTERED.values())
