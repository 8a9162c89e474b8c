"""Random histories of writes, files of others and alterations, against a model that knows columns by identity alone.

The model keeps, for each file, the values of each column that it was written with; what a version must show is looked
up by the column's identity, never by a name. It is pyarrow and plain Python: no index, no code of the engine.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import predicate_strategies as base
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import change_index, data_schemas, live_paths
from oracle import Groups, check_scan
from skipstone.base import canon
from skipstone.engine.predicates.coerce import merged_type

_NAMES = ["a", "b", "c", "x.y", "é"]
# Few names and types: what comes anew often looks like what was there.
_FEW_TYPES = st.sampled_from([pa.int64(), pa.int64(), pa.int32(), pa.string()])
_FEW = st.lists(st.tuples(st.sampled_from(_NAMES[:3]), _FEW_TYPES), min_size=1, unique_by=lambda f: f[0]).map(pa.schema)
_ANY_TYPE = st.sampled_from([kind for kind in base.COLUMN_TYPES.values() if kind != pa.timestamp("s")])
_WIDER = [
    *(pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.uint32()),
    *(
        pa.decimal128(21, 0),
        pa.decimal128(24, 3),
        pa.decimal256(45, 4),
        pa.large_string(),
        pa.binary(),
        pa.time64("ns"),
    ),
]


@dataclass(frozen=True)
class Column:
    """A column by identity: its name and type now, and those of before."""

    uid: int
    name: str
    type: pa.DataType
    default: pa.Scalar | None = None
    narrower: tuple[pa.DataType, ...] = ()


@dataclass
class Model:
    """The columns in order, the live files as {uid: values} by row group, what each version showed, and the names that
    columns gave up."""

    columns: list[Column]
    is_partitioned: bool = False
    files: dict[str, list[tuple[int, dict[int, pa.Array]]]] = field(default_factory=dict)
    versions: dict[int, dict[str, Groups]] = field(default_factory=dict)
    numbers: itertools.count = field(default_factory=lambda: itertools.count(1000))
    retired: set[str] = field(default_factory=set)

    def record(self, version: int) -> None:
        self.versions[version] = {
            path: [self._shown(path, *group) for group in groups] for path, groups in self.files.items()
        }

    def _shown(self, path: str, count: int, held: dict[int, pa.Array]) -> list[dict]:
        shown = {}
        for column in self.columns:
            if column.uid in held:
                shown[column.name] = held[column.uid].cast(column.type)
            elif column.default is not None:
                shown[column.name] = pa.repeat(column.default, count).cast(column.type)
            else:
                shown[column.name] = pa.nulls(count, column.type)
        if self.is_partitioned:
            shown["part"] = pa.array([int(path[len("part=")])] * count, pa.int32())
        return base.rows_of(pa.table(shown))

    def order(self, columns: list[Column]) -> list[str]:
        return [c.name for c in columns] + ["part"] * self.is_partitioned

    def rows(self, draw: Callable) -> tuple[pa.Table, pa.Table]:
        """Rows for the data columns, and the same with a partition's value."""
        rows = draw(base.tables(pa.schema([(c.name, c.type) for c in self.columns]), max_rows=9))
        if not self.is_partitioned:
            return rows, rows
        return rows, rows.append_column("part", pa.array([draw(st.integers(0, 2))] * rows.num_rows, pa.int32()))

    def place(self, draw: Callable, root: str, name: str) -> str:
        """A path for a file of others."""
        path = f"part={draw(st.integers(0, 2))}/{name}" if self.is_partitioned else name
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        return path

    def by_uid(self, rows: pa.Table, columns: list[Column]) -> dict[int, pa.Array]:
        return {c.uid: rows.column(c.name).combine_chunks() for c in columns if c.name in rows.column_names}

    def take(self, path: str, rows: pa.Table, columns: list[Column], group_rows: int = 1 << 20) -> None:
        """A file written with rows under the names that the columns had then."""
        parts = [rows.slice(start, group_rows) for start in range(0, rows.num_rows, group_rows)]
        self.files[path] = [(part.num_rows, self.by_uid(part, columns)) for part in parts]


def history(draw: Callable, root: str) -> tuple[ss.Table, Model]:
    schema = draw(_FEW | data_schemas())
    schema = pa.schema([pa.field(f.name, _plain(f.type)) for f in schema])
    model = Model([Column(i, f.name, f.type) for i, f in enumerate(schema)], draw(st.booleans()))
    parts = [pa.field("part", pa.int32())] * model.is_partitioned
    table = ss.create(root, schema=pa.schema([*schema, *parts]), partitioning=["part"] if parts else None)
    model.record(table.version)
    acts = [_write, _write, _attach, _tell, _alter, _renew, _renew, _stale_write, _remove]
    acts += [_index, _index, _stale_index]
    for number, act in enumerate(draw(st.lists(st.sampled_from(acts), min_size=2, max_size=9))):
        act(draw, table, model, number)
        model.record(table.version)
        assert table.schema == pa.schema([*((c.name, c.type) for c in model.columns), *parts])
    return table, model


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _write(draw: Callable, table: ss.Table, model: Model, number: int) -> None:
    before, (rows, whole) = set(live_paths(table)), model.rows(draw)
    with table.transaction() as tx:
        tx.write(whole)
    for path in set(live_paths(table)) - before:
        model.take(path, rows, model.columns)


def _stale_write(draw: Callable, table: ss.Table, model: Model, number: int) -> None:
    """A writer that began before an alteration, or before an index came or went, commits after it."""
    before, (rows, whole), columns = set(live_paths(table)), model.rows(draw), model.columns
    is_attached = draw(st.booleans()) and rows.num_rows
    path = model.place(draw, table.location, f"stale{number}.parquet")
    with table.transaction() as tx:
        if is_attached:
            pq.write_table(rows, os.path.join(table.location, path))
            tx.add_files([path])
        else:
            tx.write(whole)
        other = ss.open(table.location)
        draw(st.sampled_from([_alter, _index]))(draw, other, model, number)
        model.record(other.version)
    table.refresh()
    for path in set(live_paths(table)) - before:
        model.take(path, rows, columns)


def _attach(draw: Callable, table: ss.Table, model: Model, number: int) -> None:
    """A file of others: some of the columns, some in a narrower type, and a column that is not the table's."""
    path, rows, group_rows = _outside(draw, table, model, number)
    if draw(st.booleans()):
        table.sync(new_columns="report")
    else:
        with table.transaction() as tx:
            tx.add_files([path])
    model.take(path, rows, model.columns, group_rows)


def _tell(draw: Callable, table: ss.Table, model: Model, number: int) -> None:
    path, rows, group_rows = _outside(draw, table, model, number)
    told = {"path": path, "size_bytes": os.path.getsize(os.path.join(table.location, path)), "row_count": rows.num_rows}
    with table.transaction() as tx:
        tx.add_files(pa.Table.from_pylist([told]))
    model.take(path, rows, model.columns, group_rows)


def _outside(draw: Callable, table: ss.Table, model: Model, number: int) -> tuple[str, pa.Table, int]:
    columns = [c for c in model.columns if draw(st.integers(0, 4))]
    fields = [(c.name, draw(st.sampled_from([c.type, *c.narrower]))) for c in columns]
    # Under a name that no column ever had it would become the table's: tests/lakes/test_new_columns.py.
    free = ["odd", *(n for n in ("a", "b") if n not in table.schema.names and n in model.retired)]
    if not fields or draw(st.booleans()):
        fields.append((draw(st.sampled_from(free)), pa.int64()))
    rows = draw(base.tables(pa.schema(draw(st.permutations(fields) | st.just(fields))), max_rows=9))
    path, group_rows = model.place(draw, table.location, f"f{number}.parquet"), draw(st.integers(1, 9))
    pq.write_table(rows, os.path.join(table.location, path), row_group_size=group_rows)
    return path, rows, group_rows


def _remove(draw: Callable, table: ss.Table, model: Model, number: int) -> None:
    if model.files:
        path = draw(st.sampled_from(list(model.files)))  # as they came: names of written files are random
        with table.transaction() as tx:
            tx.remove([path])
        del model.files[path]


def _index(draw: Callable, table: ss.Table, model: Model, number: int) -> None:
    change_index(draw, table, draw(st.sampled_from(["create", "create", "refresh", "drop"])))


def _stale_index(draw: Callable, table: ss.Table, model: Model, number: int) -> None:
    """An index is built over files of which some went meanwhile, and to which others came."""
    old = ss.open(table.location)
    for act in draw(st.lists(st.sampled_from([_write, _remove]), min_size=1, max_size=3)):
        act(draw, table, model, number)
        model.record(table.version)
    _index(draw, old, model, number)
    table.refresh()


def _renew(draw: Callable, table: ss.Table, model: Model, number: int) -> None:
    """A column makes way for another of the same look, or two of one type change places: only identities tell."""
    order = model.order(model.columns)
    at = draw(st.integers(0, len(model.columns) - 1))
    old = model.columns[at]
    alike = [i for i, c in enumerate(model.columns) if c.type == old.type and i != at]
    if alike and draw(st.booleans()):
        other = draw(st.sampled_from(alike))
        table.alter(rename={order[at]: order[other], order[other]: order[at]}, order=order)
        columns = list(model.columns)
        columns[at], columns[other] = replace(columns[other], name=order[at]), replace(old, name=order[other])
        model.columns = columns
        return
    default = _default(draw, old.type)
    table.alter(drop=old.name, add={old.name: old.type if default is None else default}, order=order)
    new = Column(next(model.numbers), old.name, old.type, default)
    model.columns = [*model.columns[:at], new, *model.columns[at + 1 :]]
    if default is not None and draw(st.booleans()):
        table.create_index(new.name, kind="bloom")


def _default(draw: Callable, kind: pa.DataType) -> pa.Scalar | None:
    if canon.order_class(kind) is None or draw(st.booleans()):
        return None
    values = draw(base.tables(pa.schema([("x", kind)]), max_rows=3)).column("x")
    return values[0] if len(values) and values[0].is_valid else None


def _alter(draw: Callable, table: ss.Table, model: Model, number: int) -> None:
    """Any of rename, drop, widen, add and order, in one call."""
    gone = draw(st.lists(st.sampled_from(model.columns), max_size=len(model.columns) - 1, unique=True))
    kept = [c for c in model.columns if c not in gone]
    names = {c.name: c.name for c in kept}
    for column in draw(st.lists(st.sampled_from(kept), max_size=2, unique=True)):
        free = [n for n in _NAMES if n not in table.schema.names and n not in names.values()]
        other = draw(st.sampled_from([*free, *names]))
        if other in names:  # names go round, identities stay
            names[column.name], names[other] = names[other], names[column.name]
        else:
            names[column.name] = other
    wide = {}
    for column in kept:
        wider = [k for k in _WIDER if k != column.type and merged_type(column.type, k) == k]
        if wider and draw(st.integers(0, 2)) == 0:
            wide[column.name] = draw(st.sampled_from(wider))
    after = []
    for column in kept:
        kind = wide.get(column.name, column.type)
        narrower = (*column.narrower, column.type) if column.name in wide else column.narrower
        after.append(replace(column, name=names[column.name], type=kind, narrower=narrower))
    asked: dict[str, object] = {"rename": names, "drop": [c.name for c in gone], "widen": wide, "add": {}}
    for name in draw(st.lists(st.sampled_from(_NAMES), max_size=2, unique=True)):
        if name not in {c.name for c in after}:
            kind = _plain(draw(_FEW_TYPES | _ANY_TYPE))
            default = _default(draw, kind)
            asked["add"][name] = kind if default is None else default
            after.append(Column(next(model.numbers), name, kind, default))
    if draw(st.booleans()):
        after = draw(st.permutations(after))
        asked["order"] = model.order(after)
    table.alter(**asked)
    model.retired |= {c.name for c in gone} | {old for old, new in names.items() if old != new}
    model.columns = list(after)


def _held(draw: Callable, shown: dict[str, Groups]) -> base.ast.Node:
    """A value that some row shows, sought in its column."""
    rows = [row for groups in shown.values() for rows in groups for row in rows]
    pairs = [(name, value) for row in rows for name, value in row.items() if not isinstance(value, tuple)]
    if not pairs:
        return base.ast.Constant(True)
    name, value = draw(st.sampled_from(pairs))
    column = base.ast.Column(name)
    return base.ast.IsNull(column) if value is None else base.ast.Comparison("=", column, base.ast.Literal(value))


@given(st.data())
@settings(max_examples=examples(3))
def test_what_a_version_shows_follows_identities_not_names(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        table, model = history(data.draw, root)
        for version in {table.version, data.draw(st.sampled_from(sorted(model.versions)))}:
            old, shown = ss.open(root, version=version), model.versions[version]
            nodes = [data.draw(base.predicates(old.schema, max_leaves=3)) for _ in range(2)]
            for node in [*nodes, _held(data.draw, shown), _held(data.draw, shown), base.ast.Constant(True)]:
                check_scan(old, shown, node, node)
            assert version != table.version or [f for f in old.verify(deep=True) if f.kind != "unread"] == []
