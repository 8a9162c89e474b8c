"""What a table must answer, worked out by pyarrow and plain loops: no index, no code of the engine.

Lake            the live files of each version, row group by row group, as plain rows
check_scan      every face of one scan against the lake, at one version

A row is a dict {dotted column: plain value} (see `predicate_strategies.rows_of`); rows are compared as multisets.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from library_versions import has
from predicate_strategies import row_matches, rows_of
from skipstone.engine.predicates import ast

Groups = list[list[dict]]  # the rows of each row group of one file
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_values(path: str, fields: list[pa.Field]) -> dict[str, object]:
    """The typed values in a path's `key=value` folders."""
    folders = [part for part in path.split("/")[:-1] if "=" in part]
    texts = dict(folder.split("=", 1) for folder in folders)
    values = {}
    for wanted in fields:
        text = texts[wanted.name]
        value = None if text == HIVE_NULL else unquote(text)
        values[wanted.name] = pa.array([value], pa.string()).cast(wanted.type)[0].as_py()
    return values


def file_groups(root: str, path: str, schema: pa.Schema, partitioning: list[str]) -> Groups:
    """The rows of a file, row group by row group, in the table's schema."""
    known = partition_values(path, [schema.field(name) for name in partitioning])
    groups = []
    with pq.ParquetFile(os.path.join(root, path)) as file:
        for number in range(file.metadata.num_row_groups):
            raw = file.read_row_group(number)
            columns = []
            for wanted in schema:
                if wanted.name in known:
                    columns.append(pa.array([known[wanted.name]] * raw.num_rows, wanted.type))
                elif wanted.name in raw.column_names:
                    columns.append(raw.column(wanted.name).cast(wanted.type))
                else:
                    columns.append(pa.nulls(raw.num_rows, wanted.type))
            groups.append(rows_of(pa.table(columns, schema=schema)))
    return groups


def multiset(rows: list[dict]) -> Counter:
    """Rows as a multiset in which NaN equals NaN and -0.0 is not 0.0."""
    return Counter(repr(sorted(row.items())) for row in rows)


@dataclass
class Lake:
    """The rows of each version of a table: path -> rows by row group."""

    root: str
    versions: dict[int, dict[str, Groups]] = field(default_factory=dict)

    def record(self, table: ss.Table, added: list[str] = (), removed: list[str] = ()) -> list[dict]:
        """Notes the version that a table is at now, made by adding and removing files. Returns the rows added."""
        live = dict(self.versions[max(self.versions)]) if self.versions else {}
        for path in removed:
            del live[path]
        partitioning = table.partitions().column_names[1:-3]
        for path in added:
            live[path] = file_groups(self.root, path, table.schema, partitioning)
        self.versions[table.version] = live
        return [row for path in added for group in live[path] for row in group]

    def rows(self, version: int) -> list[dict]:
        return [row for groups in self.versions[version].values() for group in groups for row in group]


def check_scan(table: ss.Table, live: dict[str, Groups], where: object, node: ast.Node, limit: int = 3) -> None:
    """Every answer of one scan: the rows are exactly those that match, and nothing that contains one was skipped."""
    matching: list[dict] = []
    in_files: set[str] = set()
    in_groups: set[tuple[str, int]] = set()
    for path, groups in live.items():
        for number, rows in enumerate(groups):
            found = [row for row in rows if row_matches(node, row) is True]
            if found:
                matching += found
                in_files.add(path)
                in_groups.add((path, number))
    plan = table.scan(where)
    wanted = multiset(matching)
    context = f"where {where!r} at version {table.version}"
    got = plan.to_table()
    assert got.schema == table.schema, context
    assert multiset(rows_of(got)) == wanted, context
    assert plan.count() == len(matching), context
    files = plan.files().column("path").to_pylist()
    assert len(set(files)) == len(files), context
    assert in_files <= set(files) <= set(live), context
    kept = list(zip(*plan.row_groups().to_pydict().values(), strict=True))
    whole = {path for path, number in kept if number is None}
    assert len(set(kept)) == len(kept), context
    assert all(pair in set(kept) or pair[0] in whole for pair in in_groups), context
    batches = [row for batch in table.scan(where).to_batches() for row in rows_of(pa.Table.from_batches([batch]))]
    assert multiset(batches) == wanted, context
    if isinstance(where, str) and "`" not in where and "<=>" not in where and has("duckdb", 2):
        query = f"SELECT count(*) FROM self WHERE (\n{where}\n)"
        assert table.sql(query).fetchall() == [(len(matching),)], context
    limited = rows_of(table.scan(where, limit=limit).to_table())
    assert len(limited) == min(limit, len(matching)) and multiset(limited) <= wanted, context
