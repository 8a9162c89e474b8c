"""Whole queries of DuckDB over tables, at DuckDB's speed: each use of a table reads the files that matter to it.

    text -> tree -> a plan over empty tables (`duckdb_query_plan`) -> conditions per use of a table -> a scan each
    -> `read_parquet` of what is left, in the table's place (`duckdb_source`) -> a relation

Only the plan of the query tells what to skip, and the query itself runs unchanged: a condition that is not understood
prunes nothing. On a connection of the caller nothing is set or created.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import os
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import duckdb
import pyarrow as pa

from ...base.forks import no_fork
from ...errors import InvalidArgumentError, PredicateError, SchemaError
from ..predicates import And, Node, col, prepare
from ..predicates.coerce import is_exact_widening
from ..predicates.duckdb_engine import duckdb_type, message_of
from ..predicates.duckdb_trees import Bound, NotUnderstoodError, nodes_of
from ..predicates.literals import string_sql
from ..predicates.operands import quoted
from ..predicates.sql_operands import arrow_type
from .duckdb_connection import is_supported
from .duckdb_query_plan import INSTANT, Keys, TableUse, condition_sql, is_of_zone, marker, table_uses
from .duckdb_source import NotPlainError, source_sql
from .duckdb_text import type_text
from .lake_dataset import LakeDataset

if TYPE_CHECKING:
    from .plan import Plan

KEYS_MAX = 10_000
_PREFIX = "__skipstone_"  # of names in the text


class Scannable(Protocol):
    """What a query asks of a table."""

    handle: Any
    schema: pa.Schema

    def scan(self, where: object = None, columns: Sequence[str] | None = None) -> Plan: ...
    def files(self) -> pa.Table: ...


def sql(
    query: str,
    con: duckdb.DuckDBPyConnection | None = None,
    *,
    explain: bool = False,
    **tables: Any,
) -> duckdb.DuckDBPyRelation | str:
    """A query of DuckDB over tables: only the files and row groups that its conditions leave are read, by DuckDB.

        ss.sql("SELECT action, count(*) FROM lake WHERE ts >= '2026-01-01' GROUP BY 1", lake=ss.open("lake/events"))

    Args:
        query: one SELECT statement in DuckDB's SQL.
        con: a connection to run it on, which may have other tables; its time zone decides what the text means. None: a
            connection of this library, whose time zone is UTC.
        explain: return a text instead, which says what each table is read by and why.
        tables: by name in the query: tables of `open` and `create`, and whatever else DuckDB reads from Python (Arrow
            tables, data frames, relations of `con`).

    Returns a relation, which DuckDB runs when its rows are asked for. It is fixed to the versions that the tables have
    now, and answers for the other tables of the query as they are now: make it anew after they changed.

    Raises PredicateError for a text that DuckDB cannot read or bind, InvalidArgumentError for arguments that are none,
    and NotReadableError for files that are gone or changed.
    """
    lakes = {name.casefold(): table for name, table in tables.items() if _is_table(table)}
    objects = {name: value for name, value in tables.items() if name.casefold() not in lakes}
    if not lakes:
        raise InvalidArgumentError('no table of Skipstone is given: sql("SELECT ... FROM lake", lake=ss.open(path))')
    if not is_supported():
        raise InvalidArgumentError(f"sql() needs DuckDB 2.0 or later, and {duckdb.__version__} is installed")
    for table in lakes.values():
        table.handle.check_quarantined()
    with no_fork():
        session = _Session(_own_connection() if con is None else con, objects, query)
        made = _Query(session, query, lakes)
        return made.explanation() if explain else made.relation()


def _is_table(value: Any) -> bool:
    return hasattr(value, "handle") and hasattr(value, "scan")


# -- the connection ----------------------------------------------------------------------------------------------------

_connections: dict[int, tuple[Any, Any]] = {}  # by process: a child must not use its parent's


def _own_connection() -> Any:
    if os.getpid() not in _connections:
        folder = tempfile.TemporaryDirectory(prefix="skipstone-", ignore_cleanup_errors=True)
        connection = duckdb.connect(":memory:", config={"temp_directory": folder.name})
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        _connections.setdefault(os.getpid(), (connection, folder))
    return _connections[os.getpid()][0].cursor()


def _keep_parents() -> None:
    for kept in _connections.values():  # a child that collects its parent's connection dies
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    _connections.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_parents)


@dataclass
class _Session:
    """A connection, and what names in the text mean besides."""

    connection: Any
    objects: dict[str, Any]
    query: str

    def run(self, text: str) -> Any:
        """The relation of a text. DuckDB finds the objects as variables of a frame that has nothing else."""
        names = {f"{_PREFIX}run": self.connection.sql, f"{_PREFIX}text": text, **self.objects}
        try:
            return eval(f"{_PREFIX}run({_PREFIX}text)", {"__builtins__": {}}, names)
        except duckdb.Error as error:
            raise PredicateError(f"DuckDB cannot run this: {message_of(error)}", text=self.query) from None

    def value(self, text: str) -> Any:
        """The one value of a query."""
        return self.run(text).fetchall()[0][0]

    def tree(self, text: str) -> dict[str, Any]:
        """The tree of a statement. Raises PredicateError for what is no SELECT."""
        tree = json.loads(self.value(f"SELECT json_serialize_sql({string_sql(text)})"))
        if tree["error"]:
            raise PredicateError(f"DuckDB cannot read this: {tree['error_message']}", text=self.query)
        if len(tree["statements"]) != 1:
            raise PredicateError("a query is one SELECT statement", text=self.query)
        return tree

    def text(self, tree: dict[str, Any]) -> str:
        """The text of a tree."""
        return str(self.value(f"SELECT json_deserialize_sql({string_sql(json.dumps(tree))})"))

    def has_utc(self) -> bool:
        """Whether the session's time zone is UTC."""
        zone, calendar = self.run("SELECT current_setting('TimeZone'), current_setting('Calendar')").fetchall()[0]
        return zone in ("UTC", "Etc/UTC") and calendar == "gregorian"


# -- the query ---------------------------------------------------------------------------------------------------------


@dataclass
class _Use:
    """A use of a table: its name in the query, its node in the tree, its columns, and the table (None: not ours)."""

    name: str
    node: dict[str, Any]
    columns: list[str]
    types: list[str]
    table: Scannable | None
    conditions: tuple[str, ...] = ()
    plan: Plan | None = None
    note: str = ""


class _Query:
    def __init__(self, session: _Session, query: str, lakes: Mapping[str, Scannable]):
        self._session, self._lakes = session, lakes
        self._tree = session.tree(query)
        self._token = f"{_PREFIX}{uuid.uuid4().hex}:"
        self.note = ""
        self._uses = self._tables()
        if not any(use.table is not None for use in self._uses):
            names = ", ".join(lakes)
            raise PredicateError(f"the query reads none of the tables that were given: {names}", text=query)
        self._used = _names_used(self._tree, {use.node.get("alias") or use.name for use in self._uses})
        self._plan_scans()

    def relation(self) -> Any:
        """The relation over what is left of each table."""
        for number, use in enumerate(self._uses):
            if use.table is not None:
                source = self._source(use, f"{_PREFIX}{number}")
                _replace(use.node, self._session.tree(f"SELECT * FROM {source}"), use)
        return self._session.run(self._session.text(self._tree))

    def explanation(self) -> str:
        """What `relation` would read, for people."""
        lines = [self.note] if self.note else []
        for number, use in enumerate(self._uses):
            if use.table is None or use.plan is None:
                continue
            self._source(use, f"{_PREFIX}{number}")
            kept, total = use.plan.files().num_rows, use.table.files().num_rows
            lines.append(f"{use.name}: {kept:,} of {total:,} files, {use.note}")
            lines += [f"  where {text}" for text in use.conditions]
        return "\n".join(lines)

    # -- the tables of the query ---------------------------------------------------------------------------------------

    def _tables(self) -> list[_Use]:
        ctes = {
            one["key"].casefold() for node in nodes_of(self._tree) for one in (node.get("cte_map") or {}).get("map", ())
        }
        for name in sorted(ctes & set(self._lakes)):
            raise PredicateError(
                f"WITH defines {name!r}, which is a table that was given: give one another name",
                text=self._session.query,
            )
        uses = []
        for node in list(nodes_of(self._tree)):
            if node.get("type") != "BASE_TABLE" or node.get("at_clause"):
                continue
            name = node["table_name"]
            is_qualified = bool(node.get("schema_name") or node.get("catalog_name"))
            table = None if is_qualified else self._lakes.get(name.casefold())
            if table is not None:
                types = [_type_of(field) for field in table.schema]
                uses.append(_Use(name, node, table.schema.names, types, table))
            elif name.casefold() not in ctes:
                with contextlib.suppress(PredicateError):  # the query itself raises it
                    found = self._session.run(f"SELECT * FROM {self._name_of(node)} LIMIT 0")
                    uses.append(_Use(name, node, list(found.columns), [str(one) for one in found.types], None))
        return uses

    def _name_of(self, node: dict[str, Any]) -> str:
        parts = [node.get("catalog_name"), node.get("schema_name"), node["table_name"]]
        return ".".join(quoted(part) for part in parts if part)

    def _plan_scans(self) -> None:
        """Plan a scan of each table by the conditions that the plan of the query has for it."""
        uses: dict[int, TableUse] = {}
        try:
            uses = table_uses(self._planned(), self._token)
        except (PredicateError, _NoPlanError) as error:
            self.note = f"nothing is skipped: the query has no plan over empty tables ({error})"
        is_utc = self._session.has_utc()
        for number, use in enumerate(self._uses):
            if use.table is None:
                continue
            found = uses.get(number, TableUse())
            where, texts = self._predicate(use, found, uses, is_utc)
            use.conditions = tuple(texts)
            columns = [name for name in use.columns if self._used is None or name.casefold() in self._used]
            use.plan = use.table.scan(where, columns=columns)

    def _planned(self) -> dict[str, Any]:
        """The bound plan of the query over empty tables."""
        tree = copy.deepcopy(self._tree)
        numbers = {id(use.node): number for number, use in enumerate(self._uses)}
        for original, node in list(zip(nodes_of(self._tree), nodes_of(tree), strict=True)):
            number = numbers.get(id(original))
            if number is None:
                continue
            use = self._uses[number]
            fields = ", ".join(
                f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in zip(use.columns, use.types, strict=True)
            )
            empty = self._session.tree(f"SELECT * FROM (SELECT {fields} WHERE {marker(self._token, number)})")
            _replace(node, empty, use)
        text = self._session.value(
            f"SELECT json_serialize_plan({string_sql(self._session.text(tree))}, optimize := false)"
        )
        try:
            planned = json.loads(text)
        except ValueError:  # a constant of NaN, which JSON does not have
            raise _NoPlanError("DuckDB writes no valid JSON") from None
        if planned["error"]:
            raise _NoPlanError(message_of(Exception(planned["error_message"])))
        (plan,) = planned["plans"]
        return plan

    # -- the predicate of a table --------------------------------------------------------------------------------------

    def _predicate(
        self, use: _Use, found: TableUse, uses: Mapping[int, TableUse], is_utc: bool
    ) -> tuple[Node | None, list[str]]:
        assert use.table is not None
        nodes: list[Node] = []
        texts = []
        for condition in found.conditions:
            try:
                text = condition_sql(condition if is_utc else self._in_utc(condition), use.columns)
                nodes.append(prepare(text, use.table.schema))
                texts.append(text)
            except (NotUnderstoodError, PredicateError, SchemaError):
                continue
        for column, keys in found.keys:
            node = self._among_keys(use, column, keys, uses)
            if node is not None:
                nodes.append(node)
                texts.append(f"{_key_column(column, use.columns)} among the keys of {self._uses[keys.table].name}")
        return (And(tuple(nodes)) if nodes else None), texts

    def _in_utc(self, condition: Bound) -> Bound:
        """The condition with constants that do not depend on the session's time zone."""

        def fixed(one: Bound) -> Bound:
            if one.type == "TIMESTAMP WITH TIME ZONE" and not one.has_columns():
                wall_clock = f"CAST({condition_sql(one, ())} AT TIME ZONE 'UTC' AS VARCHAR)"
                return Bound(INSTANT, one.type, value=f"{self._session.value(f'SELECT {wall_clock}')}+00")
            return replace(one, children=tuple(map(fixed, one.children)))

        made = fixed(condition)
        if is_of_zone(made):
            raise NotUnderstoodError
        return made

    def _among_keys(self, use: _Use, column: Bound, keys: Keys, uses: Mapping[int, TableUse]) -> Node | None:
        """The keys of the other table, if they are few and it is not ours."""
        other, name = self._uses[keys.table], _key_column(column, use.columns)
        assert use.table is not None
        if other.table is not None or name is None:
            return None
        conditions = []
        for condition in uses.get(keys.table, TableUse()).conditions:
            with contextlib.suppress(NotUnderstoodError):
                conditions.append(condition_sql(condition, other.columns))
        try:
            key = condition_sql(keys.expression, other.columns)
        except NotUnderstoodError:
            return None
        where = " AND ".join([f"{key} IS NOT NULL", *conditions])
        source = f"{self._name_of(other.node)} WHERE {where}"
        try:
            values = self._session.run(f"SELECT DISTINCT {key} FROM {source} LIMIT {KEYS_MAX + 1}").to_arrow_table()
            if values.num_rows > KEYS_MAX:
                return None
            return prepare(col(name).is_in(values.column(0)), use.table.schema)
        except (PredicateError, duckdb.Error, pa.ArrowException):
            return None

    # -- what is read --------------------------------------------------------------------------------------------------

    def _source(self, use: _Use, name: str) -> str:
        """What the occurrence is replaced by: a read of files, or, as an object of Python, our own scan."""
        assert use.plan is not None
        try:
            text = source_sql(use.plan.planning, use.plan.columns)
            use.note = "read by DuckDB"
            return f"({text})"
        except NotPlainError as error:
            use.note = f"read by Skipstone: {error}"
        self._session.objects[name] = LakeDataset(use.plan)
        if list(use.plan.columns) == use.columns:
            return f"(SELECT * FROM {name})"
        read = set(use.plan.columns)
        fields = (
            quoted(one) if one in read else f"CAST(NULL AS {kind}) AS {quoted(one)}"
            for one, kind in zip(use.columns, use.types, strict=True)
        )
        return f"(SELECT {', '.join(fields)} FROM {name})"


class _NoPlanError(Exception):
    """DuckDB has no plan that could be read."""


def _type_of(field: pa.Field) -> str:
    return type_text(field.type) or duckdb_type(field, "")


def _replace(node: dict[str, Any], source: dict[str, Any], use: _Use) -> None:
    """Put a subquery in the place of a table, under the name and with the columns' names that it has in the query."""
    alias, columns, sample = node.get("alias"), node.get("column_name_alias"), node.get("sample")
    node.clear()
    node.update(source["statements"][0]["node"]["from_table"])
    node.update(alias=alias or use.name, column_name_alias=columns, sample=sample)


def _names_used(tree: dict[str, Any], aliases: set[str]) -> set[str] | None:
    """The names, in lower case, that columns of the query may have; None if it may read all columns."""
    folded = {alias.casefold() for alias in aliases}
    names: set[str] = set()
    for node in nodes_of(tree):
        if node.get("class") in ("STAR", "POSITIONAL_REFERENCE") or node.get("ref_type") in ("NATURAL", "POSITIONAL"):
            return None
        if node.get("class") == "COLUMN_REF":
            names |= {part.casefold() for part in node["column_names"]}
        names |= {name.casefold() for name in node.get("using_columns") or ()}
        if node.get("column_name_alias") or node.get("type") in ("PIVOT", "SHOW_REF"):
            return None
    return None if names & folded else names


def _key_column(column: Bound, names: Sequence[str]) -> str | None:
    """The name of a column that is compared as it is, or by a cast that keeps each value."""
    while column.op == "cast":
        source, target = arrow_type(column.children[0].type), arrow_type(column.type)
        if source is None or target is None or not is_exact_widening(source, target):
            return None
        column = column.children[0]
    return names[column.value] if column.op == "column" else None
