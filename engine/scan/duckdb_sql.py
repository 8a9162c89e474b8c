"""Whole queries of DuckDB over tables, at DuckDB's speed: each use of a table reads the files that matter to it.

    text -> tree -> a plan over empty tables (`duckdb_sql_plan`) -> conditions per use of a table -> a scan each
    -> `read_parquet` of what is left, in the table's place (`duckdb_source`) -> a relation

Only the plan of the query tells what to skip, and the query itself runs unchanged: a condition that is not understood
prunes nothing. On a connection of the caller nothing is set or created.
"""

from __future__ import annotations

import contextlib
import copy
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ...base.forks import no_fork
from ...errors import InvalidArgumentError, PredicateError, SchemaError
from ..predicates import And, Node, col, prepare
from ..predicates.coerce import is_exact_widening
from ..predicates.duckdb_engine import duckdb_type, message_of
from ..predicates.duckdb_trees import Bound, NotUnderstoodError, nodes_of
from ..predicates.literals import string_sql
from ..predicates.operands import quoted
from ..predicates.sql_operands import arrow_type
from .duckdb_connection import is_supported, query_connection
from .duckdb_source import NotPlainError, source_sql
from .duckdb_sql_plan import INSTANT, QueryPlan, TableUse, expression_sql, is_of_zone, marker
from .duckdb_text import type_text
from .lake_dataset import LakeDataset

if TYPE_CHECKING:
    from .plan import Plan

KEYS_MAX, LISTED_KEYS_MAX = 10_000, 1_000  # of more keys than are listed, the range prunes
_PREFIX = "__skipstone_"  # of names in the text


class Scannable(Protocol):
    """What a query asks of a table."""

    handle: Any
    schema: pa.Schema

    def scan(self, where: object = None, columns: Sequence[str] | None = None) -> Plan: ...
    def files(self) -> pa.Table: ...


@overload
def sql(
    query: str, con: duckdb.DuckDBPyConnection | None = None, *, explain: Literal[False] = False, **tables: Any
) -> duckdb.DuckDBPyRelation: ...
@overload
def sql(query: str, con: duckdb.DuckDBPyConnection | None = None, *, explain: bool, **tables: Any) -> Any: ...
def sql(
    query: str, con: duckdb.DuckDBPyConnection | None = None, *, explain: bool = False, **tables: Any
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
    now, and answers for the other tables of the query as they are now: call again after they changed.

    Raises PredicateError for a text that DuckDB cannot read or bind, InvalidArgumentError for arguments that are none,
    and NotReadableError for files that are gone or changed.
    """
    lakes = {name.casefold(): one for name, one in tables.items() if hasattr(one, "handle") and hasattr(one, "scan")}
    if not lakes:
        raise InvalidArgumentError('no table of Skipstone is given: sql("SELECT ... FROM lake", lake=ss.open(path))')
    if not is_supported():
        raise InvalidArgumentError(f"sql() needs DuckDB 2.0 or later, and {duckdb.__version__} is installed")
    with no_fork():
        objects = {name: one for name, one in tables.items() if name.casefold() not in lakes}
        made = _Query(_Session(query_connection() if con is None else con, objects, query), lakes)
        return made.explanation() if explain else made.relation()


@dataclass
class _Session:
    """A connection, and the objects of Python that a text may name."""

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

    def value(self, expression: str) -> Any:
        """The value of an expression."""
        return self.run(f"SELECT {expression}").fetchall()[0][0]

    def tree(self, text: str) -> dict[str, Any]:
        """The tree of a SELECT statement. Raises PredicateError for anything else."""
        tree = json.loads(self.value(f"json_serialize_sql({string_sql(text)})"))
        if tree["error"] or len(tree["statements"]) != 1:
            why = tree.get("error_message", "it has several statements")
            raise PredicateError(f"a query is one SELECT statement: {why}", text=self.query)
        return tree

    def text(self, tree: dict[str, Any]) -> str:
        return str(self.value(f"json_deserialize_sql({string_sql(json.dumps(tree))})"))

    def plan(self, tree: dict[str, Any]) -> dict[str, Any]:
        """The bound plan of a query. Raises ValueError if DuckDB has none, or writes no JSON (a constant of NaN)."""
        text = string_sql(self.text(tree))
        planned = json.loads(self.value(f"json_serialize_plan({text}, optimize := false)"))
        if planned["error"]:
            raise ValueError(message_of(Exception(planned["error_message"])))
        return planned["plans"][0]


@dataclass
class _Use:
    """One use of a table in the query.

    node          its node in the tree
    columns       its columns, with DuckDB's types
    table         None for a table that is not ours
    conditions    what the scan was planned by, for people
    """

    name: str
    node: dict[str, Any]
    columns: dict[str, str]
    table: Scannable | None
    plan: Plan | None = None
    conditions: list[str] = field(default_factory=list)
    reader: str = "DuckDB"


class _Query:
    def __init__(self, session: _Session, lakes: dict[str, Scannable]):
        self._session = session
        self._tree = session.tree(session.query)
        self._uses = self._tables(lakes)
        if not any(use.table is not None for use in self._uses):
            names = ", ".join(lakes)
            raise PredicateError(f"the query reads none of the tables that were given: {names}", text=session.query)
        self._note = self._plan_scans()

    def relation(self) -> Any:
        """The relation over what is left of each table."""
        for number, use in enumerate(self._uses):
            if use.plan is not None:
                _replace(use, use.node, self._session.tree(f"SELECT * FROM ({self._source(number, use)})"))
        return self._session.run(self._session.text(self._tree))

    def explanation(self) -> str:
        """What `relation` would read, for people."""
        lines = [self._note] if self._note else []
        for number, use in enumerate(self._uses):
            if use.plan is not None and use.table is not None:
                self._source(number, use)
                kept, total = use.plan.files().num_rows, use.table.files().num_rows
                lines.append(f"{use.name}: {kept:,} of {total:,} files, read by {use.reader}")
                lines += [f"  where {condition}" for condition in use.conditions]
        return "\n".join(lines)

    def _tables(self, lakes: dict[str, Scannable]) -> list[_Use]:
        maps = [node["cte_map"]["map"] for node in nodes_of(self._tree) if node.get("cte_map")]
        ctes = {one["key"].casefold() for one_map in maps for one in one_map}
        if ctes & set(lakes):
            message = f"WITH defines {min(ctes & set(lakes))!r}, a table that was given: give one another name"
            raise PredicateError(message, text=self._session.query)
        uses = []
        for node in [node for node in nodes_of(self._tree) if node.get("type") == "BASE_TABLE"]:
            name, is_bare = node["table_name"], not (node["schema_name"] or node["catalog_name"] or node["at_clause"])
            table = lakes.get(name.casefold()) if is_bare else None
            if table is not None:
                table.handle.check_quarantined()
                fields = [one for one in table.schema if not _is_unknown(one.type)]
                columns = {one.name: type_text(one.type) or duckdb_type(one, "") for one in fields}
                uses.append(_Use(name, node, columns, table))
            elif name.casefold() not in ctes:
                with contextlib.suppress(PredicateError):  # the query itself raises it
                    found = self._session.run(f"SELECT * FROM {_full_name(node)} LIMIT 0")
                    uses.append(_Use(name, node, dict(zip(found.columns, map(str, found.types), strict=True)), None))
        return uses

    def _plan_scans(self) -> str:
        """Plan a scan of each table by its conditions in DuckDB's plan. Return why there is no plan, or ""."""
        token, note, uses, keys = f"{_PREFIX}{uuid.uuid4().hex}:", "", {}, {}
        try:
            found = QueryPlan(self._session.plan(self._over_empty_tables(token)), token)
            uses, keys = found.uses, found.keys
        except (PredicateError, ValueError) as error:
            note = f"nothing is skipped, since DuckDB shows no plan of the query: {error}"
        names = ", ".join(f"current_setting('{name}')" for name in ("TimeZone", "Calendar", "ieee_floating_point_ops"))
        zone, calendar, has_infinity = self._session.run(f"SELECT {names}").fetchall()[0]
        is_utc = zone in ("UTC", "Etc/UTC") and calendar == "gregorian"
        if not has_infinity:
            note, uses = "nothing is skipped, since the connection divides by zero in another way", {}
        for number, use in enumerate(self._uses):
            if use.table is not None:
                of_use = uses.get(number, TableUse())
                nodes = [self._condition(use, one, is_utc) for one in of_use.conditions]
                nodes += [self._among(use, value, keys.get(key), uses) for value, key in of_use.among]
                known = tuple(node for node in nodes if node is not None)
                use.plan = use.table.scan(And(known) if known else None, columns=list(use.columns))
        return note

    def _over_empty_tables(self, token: str) -> dict[str, Any]:
        tree = copy.deepcopy(self._tree)
        numbers = {id(use.node): number for number, use in enumerate(self._uses)}
        for original, node in list(zip(nodes_of(self._tree), nodes_of(tree), strict=True)):
            number = numbers.get(id(original))
            if number is not None:
                use = self._uses[number]
                nulls = ", ".join(f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in use.columns.items())
                empty = f"SELECT * FROM (SELECT {nulls} WHERE {marker(token, number)})"
                _replace(use, node, self._session.tree(empty))
        return tree

    def _condition(self, use: _Use, condition: Bound, is_utc: bool) -> Node | None:
        """A condition on our table, as `where=` would read it; None for one that is not understood."""
        assert use.table is not None
        with contextlib.suppress(NotUnderstoodError, PredicateError, SchemaError):
            if not is_utc:
                condition = self._with_instants(condition)
                if is_of_zone(condition):
                    return None
            text = expression_sql(condition, list(use.columns))
            node = prepare(text, use.table.schema)
            use.conditions.append(text)
            return node
        return None

    def _with_instants(self, one: Bound) -> Bound:
        """The condition with constant instants as the session's time zone makes them."""
        if one.type != "TIMESTAMP WITH TIME ZONE" or one.has_columns():
            return replace(one, children=tuple(map(self._with_instants, one.children)))
        text = self._session.value(f"CAST({expression_sql(one, ())} AT TIME ZONE 'UTC' AS VARCHAR)")
        return Bound(INSTANT, one.type, value=f"{text}+00")

    def _among(self, use: _Use, value: Bound, keys: tuple[int, Bound] | None, uses: dict[int, TableUse]) -> Node | None:
        """The values that a join with a small table leaves; None if there are many, or the small table is ours."""
        name = _column_of(value, list(use.columns))
        other = None if keys is None else self._uses[keys[0]]
        if keys is None or other is None or other.table is not None or use.table is None or name is None:
            return None
        with contextlib.suppress(NotUnderstoodError, PredicateError, duckdb.Error, pa.ArrowException):
            key, conditions = expression_sql(keys[1], list(other.columns)), []
            for condition in uses[keys[0]].conditions:
                with contextlib.suppress(NotUnderstoodError):
                    conditions.append(expression_sql(condition, list(other.columns)))
            where = " AND ".join([f"{key} IS NOT NULL", *conditions])
            query = f"SELECT DISTINCT {key} FROM {_full_name(other.node)} WHERE {where} LIMIT {KEYS_MAX + 1}"
            found = self._session.run(query).to_arrow_table().column(0)
            if len(found) <= KEYS_MAX:
                use.conditions.append(f"{quoted(name)} is among {len(found):,} keys of {other.name}")
                if len(found) <= LISTED_KEYS_MAX:
                    return prepare(col(name).is_in(found), use.table.schema)
                if not pa.types.is_floating(found.type):  # the range would leave NaN out
                    return prepare(col(name).between(*pc.min_max(found).values()), use.table.schema)
        return None

    def _source(self, number: int, use: _Use) -> str:
        """A read of files, or, where that is not exact, our own scan as an object of Python."""
        assert use.plan is not None
        try:
            text, tables = source_sql(use.plan.planning, f"{_PREFIX}{number}_")
        except (NotPlainError, SchemaError) as error:
            use.reader = f"Skipstone: {error}"
        else:
            self._session.objects |= tables
            return text
        self._session.objects[f"{_PREFIX}{number}"] = LakeDataset(use.plan)
        return f"FROM {_PREFIX}{number}"


def _is_unknown(kind: pa.DataType) -> bool:
    """Whether DuckDB has no such type: queries cannot name such a column."""
    if pa.types.is_nested(kind):
        return any(_is_unknown(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_float16(kind) or pa.types.is_decimal256(kind)


def _full_name(node: dict[str, Any]) -> str:
    return ".".join(quoted(part) for part in (node["catalog_name"], node["schema_name"], node["table_name"]) if part)


def _replace(use: _Use, node: dict[str, Any], source: dict[str, Any]) -> None:
    """Put a subquery in the place of a table, under the names that the table and its columns have in the query."""
    kept = {name: node[name] for name in ("column_name_alias", "sample")}
    alias = node["alias"] or use.name
    node.clear()
    node.update(source["statements"][0]["node"]["from_table"], alias=alias, **kept)


def _column_of(value: Bound, names: Sequence[str]) -> str | None:
    """The name of a column that is compared as it is, or by a cast that keeps each value."""
    while value.op == "cast":
        source, target = arrow_type(value.children[0].type), arrow_type(value.type)
        if source is None or target is None or not is_exact_widening(source, target):
            return None
        value = value.children[0]
    return names[value.value] if value.op == "column" else None
