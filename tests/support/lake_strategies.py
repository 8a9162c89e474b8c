"""Random lakes: their files, and the ways in which they change.

lakes()   a table attached to drawn files, then changed by drawn actions, with the lake that it must match

Small lakes made by hand too: `make_file`, `make_lake`, `commit_rows`, and files that are declared without existing
(`bare_table`, `declare`).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import predicate_strategies as base
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from hypothesis import strategies as st
from oracle import HIVE_NULL, Lake, multiset
from skipstone.base import canon
from skipstone.base.ordered_keys import ordered_class

PARTITION_TEXTS = [None, "a", "b/c", "ü=%", "x:y", "a b", "%41", "it's", "1.b", "-", "..", "{}", "日本"]
PARTITIONINGS = [(), ("p",), ("q",), ("p", "q")]


@st.composite
def partition_columns(draw: st.DrawFn, names: tuple[str, ...]) -> dict[str, object]:
    """A value for each partition column: `p` is an int, `q` a text."""
    values = {"p": st.none() | st.integers(-2, 3), "q": st.sampled_from(PARTITION_TEXTS)}
    return {name: draw(values[name]) for name in names}


def hive_folder(values: dict[str, object]) -> str:
    """The folders of partition values, written as Hive and Spark do."""
    texts = {k: HIVE_NULL if v is None else quote(str(v), safe=" -.{}()日本ü") for k, v in values.items()}
    return "".join(f"{name}={text}/" for name, text in texts.items())


@st.composite
def file_tables(draw: st.DrawFn, schema: pa.Schema, max_rows: int = 16) -> pa.Table:
    """Rows of another writer's file: columns may be missing, or have a narrower type if the values allow it."""
    kept = [field for field in schema if draw(st.integers(0, 5)) > 0] or list(schema)
    rows = draw(base.tables(pa.schema(kept), max_rows))
    for at, field in enumerate(kept):
        narrower = _NARROWER.get(field.type)
        if narrower is not None and draw(st.booleans()):
            try:
                column = rows.column(at).cast(narrower)
            except pa.ArrowInvalid:
                continue
            if repr(column.cast(field.type).to_pylist()) == repr(rows.column(at).to_pylist()):
                rows = rows.set_column(at, field.name, column)
    return rows


_NARROWER = {
    pa.int64(): pa.int32(),
    pa.int32(): pa.int8(),
    pa.float64(): pa.float32(),
    pa.timestamp("us", "UTC"): pa.timestamp("ms", "UTC"),
    pa.large_string(): pa.string(),
    pa.binary(): pa.string(),
}


@st.composite
def data_schemas(draw: st.DrawFn) -> pa.Schema:
    """As `base.schemas`, without seconds, which Parquet changes to milliseconds."""
    drawn = [field for field in draw(base.schemas()) if field.type != pa.timestamp("s")]
    return pa.schema(drawn or [("i64", pa.int64())])


@st.composite
def lakes(draw: st.DrawFn, root: str, max_actions: int = 4) -> tuple[ss.Table, Lake]:
    """A table in an empty folder, changed by drawn actions, and the lake with the rows of each version."""
    schema = draw(data_schemas())
    partitioning = draw(st.sampled_from(PARTITIONINGS))
    declared = pa.schema([(n, {"p": pa.int32(), "q": pa.string()}[n]) for n in partitioning])
    lake = Lake(root)
    paths = []
    if draw(st.integers(0, 4)) > 0:
        for number in range(draw(st.integers(1, 4))):
            paths.append(_write_file(draw, root, schema, partitioning, f"f{number}.parquet"))
    if paths:
        table = ss.create(root, partitioning=declared if partitioning else "hive")
    else:
        table = ss.create(root, schema=pa.schema([*schema, *declared]), partitioning=list(partitioning) or None)
    lake.record(table, added=paths)
    for number in range(draw(st.integers(0, max_actions))):
        _act(draw, table, lake, number, partitioning)
    return table, lake


def _write_file(draw: st.DrawFn, root: str, schema: pa.Schema, partitioning: tuple[str, ...], name: str) -> str:
    path = hive_folder(draw(partition_columns(partitioning))) + name
    os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
    rows = draw(file_tables(schema))
    pq.write_table(rows, os.path.join(root, path), row_group_size=draw(st.integers(1, 9)))
    return path


def _act(draw: st.DrawFn, table: ss.Table, lake: Lake, number: int, partitioning: tuple[str, ...]) -> None:
    kinds = ["write", "write", "task", "attach", "remove", "replace", "create", "create", "refresh", "drop"]
    kind = draw(st.sampled_from(kinds))
    before = lake.versions[table.version]
    if kind in ("create", "refresh", "drop"):
        change_index(draw, table, kind)
        lake.record(table)
        return
    removed = (
        draw(st.lists(st.sampled_from(sorted(before)), unique=True)) if kind in ("remove", "replace") and before else []
    )
    written: list[dict] = []
    attached: list[str] = []
    with table.transaction() as tx:
        if removed:
            tx.remove(removed)
        if kind in ("write", "replace"):
            for _ in range(draw(st.integers(1, 2))):
                rows = _rows_to_write(draw, table, partitioning)
                written += base.rows_of(rows)
                tx.write(rows)
        elif kind == "task":
            spec = pickle.loads(pickle.dumps(tx.task_spec()))
            rows = _rows_to_write(draw, table, partitioning)
            written += base.rows_of(rows)
            with ss.TaskWriter(spec) as task:
                task.write(rows.to_batches())
            tx.add_task(pickle.loads(pickle.dumps(task.result)))
        elif kind == "attach":
            data = pa.schema([f for f in table.schema if f.name not in partitioning])
            attached.append(_write_file(draw, lake.root, data, partitioning, f"later{number}.parquet"))
            tx.add_files(attached)
    if not (removed or written or attached):
        lake.record(table)
        return
    now = set(table.files().column("path").to_pylist())
    added = lake.record(table, added=sorted(now - set(before)), removed=removed)
    assert set(before) - set(removed) <= now
    if not attached:
        assert multiset(added) == multiset(written)


def _rows_to_write(draw: st.DrawFn, table: ss.Table, partitioning: tuple[str, ...]) -> pa.Table:
    data = pa.schema([f for f in table.schema if f.name not in partitioning])
    rows = draw(base.tables(data, max_rows=16))
    for name in partitioning:
        values = [draw(partition_columns((name,)))[name] for _ in range(rows.num_rows)]
        rows = rows.append_column(table.schema.field(name), pa.array(values, table.schema.field(name).type))
    return rows.select(table.schema.names)


def change_index(draw: st.DrawFn, table: ss.Table, kind: str) -> None:
    """Create, refresh or drop an index: a filter, a secondary index of a column or two, or statistics."""
    index_kind = draw(st.sampled_from(["bloom", "secondary", "secondary", "stats"]))
    there = [row["columns"] for row in table.indexes().to_pylist() if row["kind"] == index_kind and row["columns"]]
    known = {name for columns in there for name in columns}
    data = pa.schema([f for f in table.schema if f.name not in table.handle.instant.partitioning])
    leaves = {n: t for n, t in base.leaf_columns(data).items() if canon.hash_name(t) is not None}
    if index_kind == "secondary":
        free = [n for n, t in leaves.items() if ordered_class(t) is not None]
    else:
        free = [n for n in leaves if n not in known]
    if kind == "create" and free:
        options = {"maintain": draw(st.sampled_from(["commit", "refresh"]))}
        if index_kind == "bloom":
            options["fpp"] = draw(st.sampled_from([None, 0.001, 0.01, 0.1]))
        most = 1 if index_kind == "bloom" else 2
        columns = draw(st.lists(st.sampled_from(free), min_size=1, max_size=most, unique=True))
        if index_kind != "secondary" or columns not in there:
            table.create_index(columns, kind=index_kind, **options)
    elif kind in ("refresh", "drop") and there:
        columns = draw(st.sampled_from(there))
        if index_kind != "secondary":
            columns = [draw(st.sampled_from(columns))]
        (table.refresh_index if kind == "refresh" else table.drop_index)(columns, kind=index_kind)


# -- small lakes by hand ----------------------------------------------------------------------------------------------


def make_file(root: Path, path: str, columns: pa.Table | dict, **options) -> str:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), root / path, **options)
    return path


def make_lake(root: Path, tables: Iterable[pa.Table | dict], **options: Any) -> Path:
    """Index a directory of one file per table of rows: 0.parquet, 1.parquet and so on."""
    for number, rows in enumerate(tables):
        make_file(root, f"{number}.parquet", rows, **options)
    ss.create(root).close()
    return root


def write_rows(table: ss.Table, rows: pa.Table) -> None:
    with table.transaction() as tx:
        tx.write(rows)


def commit_rows(table: ss.Table, rows: dict) -> list[str]:
    """Return the paths of the new files."""
    before = set(live_paths(table))
    write_rows(table, pa.table(rows))
    return sorted(set(live_paths(table)) - before)


def add_files(table: ss.Table, files: pa.Table | Sequence[str]) -> None:
    with table.transaction() as tx:
        tx.add_files(files)


def remove_files(table: ss.Table, paths: Sequence[str]) -> None:
    with table.transaction() as tx:
        tx.remove(paths)


def file_ids(table: ss.Table) -> dict[str, int]:
    """The id of each live file by its path."""
    files = table.files(columns=["path", "file_id"])
    return dict(zip(files.column("path").to_pylist(), files.column("file_id").to_pylist(), strict=True))


def values_of(table: ss.Table, where: object = None, column: str = "a") -> list:
    """The values of a column in the rows that match, sorted."""
    return sorted(table.scan(where, columns=[column]).to_table().column(column).to_pylist())


def live_paths(table: ss.Table) -> list[str]:
    return table.files().column("path").to_pylist()


def file_row(path: str, row_count: int = 10, **more) -> dict:
    """One file that is declared without existing."""
    return {"path": path, "size_bytes": 1000, "row_count": row_count, **more}


def declare(table: ss.Table, *files: dict) -> None:
    names = list(dict.fromkeys(name for file in files for name in file))
    rows = [{name: file.get(name) for name in names} for file in files]  # from_pylist looks at the first row's names
    add_files(table, pa.Table.from_pylist(rows))


def bare_table(root: Path, kind: pa.DataType | None = None) -> ss.Table:
    return ss.create(root, schema=pa.schema([("a", kind or pa.int64()), ("b", pa.int64())]))


def kept_paths(table: ss.Table, where: object) -> list[str]:
    return sorted(table.scan(where).files().column("path").to_pylist())


def stats_of(**columns: tuple) -> dict:
    return {"stats": {n: dict(zip(("min", "max", "null_count"), v, strict=True)) for n, v in columns.items()}}
