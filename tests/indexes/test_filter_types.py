"""Filters of every type against plain loops: built, committed and copied ones in one index, asked for anything."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
from predicate_strategies import COLUMN_TYPES, leaves, tables
from skipstone import col
from skipstone.base import canon
from skipstone.engine.indexes.bloom import task_filters
from skipstone.engine.predicates import ast
from skipstone.engine.predicates import literals as operands

# A struct has no filter; Parquet has no seconds, and its files hold milliseconds.
FILTERED = {name: kind for name, kind in COLUMN_TYPES.items() if name not in ("inner", "ts_s")}


@contextmanager
def _folder() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp())
    try:
        yield root
    finally:
        shutil.rmtree(root)


def _write(root: Path, path: str, rows: pa.Table, group_rows: int) -> None:
    pq.write_table(rows, root / path, row_group_size=group_rows)


def _lake(data: st.DataObject, root: Path, name: str) -> ss.Table:
    """A table of a column, and another that alone has statistics; its filters come from builds and from commits."""
    schema = pa.schema([(name, FILTERED[name]), ("other", pa.int64())])
    group_rows = data.draw(st.integers(1, 6))
    _write(root, "0.parquet", data.draw(tables(schema, 12)), group_rows)
    for number in range(1, data.draw(st.integers(1, 3))):
        _write(root, f"{number}.parquet", data.draw(file_tables(schema, 12)), group_rows)
    table = ss.create(root, columns=["other"])
    table.create_index(name, kind="bloom", fpp=data.draw(st.sampled_from([None, 0.1, 0.01, 1e-6])))
    for number in range(data.draw(st.integers(0, 3))):
        what = data.draw(st.sampled_from(["write", "write", "sync", "refresh", "optimize"]))
        if what == "write":
            with table.transaction() as tx:
                tx.write(data.draw(tables(table.schema, 12)))
        elif what == "sync":
            _write(root, f"later-{number}.parquet", data.draw(tables(schema, 12)), group_rows)
            table.sync()
        elif what == "refresh":
            table.refresh_index(name, kind="bloom")
        else:
            table.optimize()
    return table


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("name", FILTERED)
@settings(max_examples=examples(2, 60))
@given(data=st.data())
def test_no_filter_of_any_type_loses_a_row(name: str, data: st.DataObject) -> None:
    least = data.draw(st.sampled_from([1, 2, 100]), label="row groups from which a filter over the file is kept")
    with _folder() as root, warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_filters, "has_file_level", lambda row_groups, fpp: row_groups >= least)
        warnings.simplefilter("ignore")  # files without filters, or of a type that has none
        table = _lake(data, root, name)
        live = {path: file_groups(str(root), path, table.schema, []) for path in table.files()["path"].to_pylist()}
        asked: list[ast.Node] = [data.draw(leaves(pa.schema([table.schema.field(name)]))) for _ in range(2)]
        there = [value for path in live for value in _values(root / path, name, FILTERED[name])]
        if there:
            literal = operands.Literal(data.draw(st.sampled_from(there)))
            asked += [ast.Comparison(op, operands.Column(name), literal) for op in ("=", "<=>", "!=")]
        for node in asked:
            check_scan(table, live, node, node)
            check_scan(table, live, ast.Not(node), ast.Not(node))


def _values(path: Path, name: str, kind: pa.DataType) -> list[object]:
    """What a file holds, as literals of the column's type."""
    rows = pq.read_table(path)
    if name not in rows.column_names:
        return []
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = list(rows.column(name).cast(plain))
    return values if pa.types.is_temporal(plain) else [value.as_py() for value in values]


def test_every_type_that_hashes_is_tried() -> None:
    assert all(canon.hash_name(kind) is not None for kind in FILTERED.values())


def test_equality_is_the_predicates(tmp_path: Path) -> None:
    """NaN, -0.0, scales and units, nulls: under built and committed filters, as without."""
    nan = float("nan")
    cases = [
        (pa.float64(), [0.0, -0.0, nan, None, 1.5], [(0, 2), (-0.0, 2), (nan, 1), (1.5, 1), (2.5, 0)]),
        (pa.decimal128(9, 2), ["1.10", "1.00", None], [("1.1", 1), ("1.100", 1), ("1", 1), ("1.005", 0)]),
    ]
    for number, (kind, values, expected) in enumerate(cases):
        root = tmp_path / str(number)
        root.mkdir()
        plain = pa.array(values, pa.string()).cast(kind) if pa.types.is_decimal(kind) else pa.array(values, kind)
        rows = pa.table({"k": plain, "other": range(len(values))})
        pq.write_table(rows, root / "a.parquet")
        table = ss.create(root, columns=["other"])
        table.create_index("k", kind="bloom")
        with table.transaction() as tx:
            tx.write(rows)
        for value, count in expected:
            where = f"k = {value}" if isinstance(value, str) else col("k") == value
            assert table.scan(where).count() == 2 * count, (kind, value)
        assert table.scan("k <=> NULL").count() == 2
        assert table.scan("k IS NULL").count() == 2
        assert table.scan("k = NULL").count() == 0
