"""What is read of a table whose life a model follows: random rows and predicates, and every way of reading.

VALUES, TYPES       the values of the machine's columns, by class of type
rows_for            random rows of a schema
predicate_for       a random predicate
check               one version through one handle: files, columns, totals, and what random predicates and keys find
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from unittest import mock

import predicate_strategies as base
import pyarrow as pa
import skipstone as ss
from library_versions import has
from life_model import Model, array_of, held_by
from oracle import check_scan, multiset
from skipstone.engine.indexes.bloom import merge as bloom_merge
from skipstone.engine.indexes.secondary import kind as secondary
from skipstone.engine.indexes.stats import format as stats_format
from skipstone.engine.predicates import ast
from skipstone.engine.predicates import literals as operands
from skipstone.engine.scan import duckdb_select, lookup
from skipstone.engine.scan import file_reader as reading_rows
from skipstone.engine.state import lsm

JSON = pa.json_(pa.string()) if has("pyarrow", 19) else pa.large_binary()
DAY = dt.datetime(2024, 1, 5)
VALUES: dict[str, list] = {
    "int": [*range(6), None],
    "float": [0.0, -0.0, 1.0, 2.5, math.nan, None],
    "text": ["", "a", "ab", "b", "b\0", "é", "an abcdef", None],
    "decimal": [Decimal("1.10"), Decimal("-999.99"), Decimal(0), None],
    "time": [DAY, dt.datetime(1, 1, 1), dt.datetime(1970, 1, 1), None],
    "uuid": [uuid.UUID(int=7919 * i).bytes for i in range(3)] + [None],
    "json": ['{"k": 1}', '{"k": null}', None],
}
# The narrowest type of each class first: other writers may write it.
TYPES: dict[str, list[pa.DataType]] = {
    "int": [pa.int32(), pa.int64()],
    "float": [pa.float32(), pa.float64()],
    "text": [pa.string(), pa.large_string()],
    "decimal": [pa.decimal128(5, 2), pa.decimal128(10, 4)],
    "time": [pa.timestamp("ms"), pa.timestamp("us")],
    "uuid": [pa.uuid()],
    "json": [JSON],
}
COMPARED = ("int", "float", "text", "decimal")


def class_of(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "int"
    return next(name for name, kinds in TYPES.items() if kind in kinds)


def rows_for(r: random.Random, schema: pa.Schema, count: int) -> pa.Table:
    """Rows of few values, so that they meet."""
    columns = [array_of([r.choice(VALUES[class_of(f.type)]) for _ in range(count)], f.type) for f in schema]
    return pa.table(columns, schema=schema)


def predicate_for(r: random.Random, schema: pa.Schema, depth: int = 2) -> ast.Node:
    """Any form over few values."""
    if depth and r.random() < 0.6:
        nodes = tuple(predicate_for(r, schema, depth - 1) for _ in range(r.choice([2, 2, 3])))
        return r.choice([ast.And, ast.And, ast.Or])(nodes)
    if depth and r.random() < 0.2:
        return ast.Not(predicate_for(r, schema, depth - 1))
    field = r.choice(list(schema))
    kind, column = class_of(field.type), operands.Column(field.name)
    if kind not in COMPARED:
        return ast.IsNull(column)
    values = VALUES[kind]
    form = r.choice(["compare"] * 4 + ["in", "in", "not in", "null", "text" if kind == "text" else "in"])
    if form == "compare":
        value = r.choice(values) if r.random() < 0.2 else r.choice(values[:-1])
        return ast.Comparison(r.choice([*ast.FLIPPED, "=", "=", "!=", "<=>"]), column, operands.Literal(value))
    if form == "null":
        return ast.IsNull(column)
    if form == "text":
        if r.random() < 0.5:
            return ast.StartsWith(column, r.choice(["a", "b", "b\0", "é"]))
        return ast.Like(column, r.choice(["a%", "%b", "a_", "b%%", "ab", "%abcdef%", "%abcdef"]))  # n-grams are of 5
    listed = r.choices(values if r.random() < 0.3 else values[:-1], k=r.randint(1, 4))
    return ast.In(column, tuple(operands.Literal(v) for v in listed), form == "not in")


@contextlib.contextmanager
def small_bounds(r: random.Random) -> Iterator[None]:
    """Bounds that small tables do not come to."""
    with (
        mock.patch.object(secondary, "ENTRIES_MAX", r.choice([5, 1 << 20, 1 << 20])),
        mock.patch.object(secondary, "ROWS_MAX", r.choice([3, 1 << 21])),
        mock.patch.object(reading_rows, "_FEW_ROWS_MAX", r.choice([1, 64])),
        mock.patch.object(duckdb_select, "_POSITIONS_MAX", r.choice([1, 1_000])),
        mock.patch.object(duckdb_select, "_POSITION_FILES_MAX", r.choice([0, 32])),
        mock.patch.object(duckdb_select, "_SMALL_FILE_ROWS_MAX", r.choice([0, 1 << 17])),
    ):
        yield


def small_runs(r: random.Random) -> list[contextlib.AbstractContextManager]:
    """Bounds of what commits write, so small that runs are merged, cut and grouped in each way."""
    policy = replace(bloom_merge.POLICY, commit_bytes=r.choice([3_000, 1 << 24]))
    return [
        mock.patch.object(bloom_merge, "POLICY", policy),
        mock.patch.object(bloom_merge, "RUN_BYTES_MAX", r.choice([2_000, 1 << 24])),
        mock.patch.object(bloom_merge, "MEMBERS_MAX", r.choice([2, 1 << 15])),
        mock.patch.object(stats_format, "BLOCK_BYTES", r.choice([200, 5_000, 1 << 16])),
        mock.patch.object(lsm, "_ROWS_AT_ONCE", r.choice([20, 1 << 17])),
    ]


def check(model: Model, table: ss.Table, r: random.Random) -> None:
    """One version through one handle."""
    version = table.version
    live = model.versions[version].live
    assert held_by(table) == live, f"version {version}"
    assert {(f.name, f.type) for f in table.schema} == model.fields(version)
    if not all((path, held.token) in model.contents for path, held in live.items()):
        return  # overwritten before anybody could read it
    totals, partitions = table.handle.instant.totals, table.partitions()
    assert (totals["files"], totals["rows"]) == (len(live), model.row_count(version))
    assert sum(partitions["row_count"].to_pylist()) == totals["rows"]
    assert sum(partitions["file_count"].to_pylist()) == totals["files"]
    rows = model.shown(version, table.schema)
    node = predicate_for(r, table.schema)
    if model.lost(version):
        _check_counts(table, rows, node)
        return
    with small_bounds(r):
        check_scan(table, rows, node, node)
        _check_more(table, rows, node, r)
    _check_lookup(table, rows, r)


def _check_counts(table: ss.Table, rows: dict, node: ast.Node) -> None:
    """Files are missing or replaced: answers are right all the same."""
    matching = {path: matching_of(node, groups) for path, groups in rows.items()}
    assert {p for p, found in matching.items() if found} <= set(table.scan(node).files()["path"].to_pylist())
    with contextlib.suppress(ss.NotReadableError):
        assert table.scan(node).count() == sum(map(len, matching.values()))
    with contextlib.suppress(ss.NotReadableError):
        wanted = multiset([row for found in matching.values() for row in found])
        assert multiset(base.rows_of(table.scan(node).to_table())) == wanted


def _check_more(table: ss.Table, rows: dict, node: ast.Node, r: random.Random) -> None:
    """By each reader, or by an index that includes the columns; fewer columns, extremes."""
    matching = [row for groups in rows.values() for row in matching_of(node, groups)]
    columns = r.sample(table.schema.names, r.randint(0, len(table.schema)))
    context = f"{node} at version {table.version}"
    for reader in ("pyarrow", "duckdb", "auto"):
        found = table.scan(node, columns=columns, reader=reader).to_table()
        assert found.num_rows == len(matching), context
        if columns:
            wanted = [{name: row[name] for name in columns} for row in matching]
            assert multiset(base.rows_of(found)) == multiset(wanted), context
    _check_extremes(table.scan(node), compared(table.schema), matching, r, context)


def _check_extremes(plan: ss.Plan, names: list[str], matching: list[dict], r: random.Random, context: str) -> None:
    if names:
        name = r.choice(names)
        values = [base._key(row[name], row[name]) for row in matching if row[name] is not None]
        for found, best in ((plan.min(name), min), (plan.max(name), max)):
            assert (None if found is None else base._key(found, found)) == best(values, default=None), context


def _check_lookup(table: ss.Table, rows: dict, r: random.Random) -> None:
    able = compared(table.schema)
    if not able:
        return
    names = r.sample(able, r.randint(1, min(3, len(able))))
    keys = rows_for(r, pa.schema([table.schema.field(name) for name in names]), r.randint(0, 6))

    def key(row: dict) -> tuple | None:
        values = [row[name] for name in names]
        return None if None in values else tuple(base._key(value, value) for value in values)

    wanted = {one for row in base.rows_of(keys) if (one := key(row)) is not None}
    matching = [row for groups in rows.values() for g in groups for row in g if key(row) in wanted]
    context = f"{keys.to_pylist()} at version {table.version}"
    few, share, dense = r.choice([-1, -1, 1024]), r.choice([0.01, 9.0]), r.choice([0, 1 << 16])
    with mock.patch.multiple(lookup, FEW_KEYS=few, SPREAD_SHARE=share, DENSE_KEYS_MIN=dense):
        plan = table.lookup(keys, reader=r.choice(["pyarrow", "duckdb"]))
        assert table.lookup(keys).count() == len(matching), context
        assert multiset(base.rows_of(plan.to_table())) == multiset(matching), context
        _check_extremes(plan, able, matching, r, context)


def compared(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if class_of(field.type) in COMPARED]


def matching_of(node: ast.Node, groups: list[list[dict]]) -> list[dict]:
    return [row for group in groups for row in group if base.row_matches(node, row) is True]
