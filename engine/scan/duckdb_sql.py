"""Whole queries of DuckDB over tables, at DuckDB's speed: each use of a table reads the files that matter to it.

    text -> tree -> a plan over empty tables (`duckdb_sql_plan`) -> conditions per use of a table -> a scan each
    -> `read_parquet` of what is left, in the table's place -> a relation

Only the plan of the query decides what to skip, and the query itself runs unchanged: a condition that is not understood
prunes nothing. On a connection of the caller nothing is set or created.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar, overload

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ...base.forks import no_fork
from ...errors import InvalidArgumentError, PredicateError, SchemaError
from ..observing import is_observed
from ..predicates import And, Constant, Node, col, prepare
from ..predicates.coerce import is_exact_widening
from ..predicates.duckdb_engine import duckdb_type, message_of
from ..predicates.duckdb_trees import Bound, NotUnderstoodError, arrow_type, nodes_of
from ..predicates.literals import INFINITE_NS, literal_value, quoted, string_sql
from ..stale import check_answers
from .bounds import bounds_of, end_of_first, value_of
from .duckdb_connection import cursor, is_supported, query_connection
from .duckdb_reader import DuckDBReader, kept_of
from .duckdb_select import PREFIX, type_text, values_within
from .duckdb_sql_plan import INSTANT, QueryPlan, TableUse, expression_sql, is_of_zone, marker
from .file_reader import check_identities
from .file_tasks import FileTask, Pair, RowGroups, rows_read
from .plan import Plan
from .planned_rows import answered_by_index, to_merge
from .planning import PlannedScan
from .prune import KEPT_FILES_MAX
from .request import SortKey

T = TypeVar("T")

KEYS_MAX, LISTED_KEYS_MAX = 10_000, 1_000  # of more keys than are listed, the range prunes
_PARTS_MAX = 4  # files that are read by row numbers, each by a separate SELECT
_SETTINGS = ("TimeZone", "Calendar", "ieee_floating_point_ops")
_MARK = f"{PREFIX}{uuid.uuid4().hex}_"  # of a use of a table
_KEPT_MAX, _KEPT_TEXT_MAX = 256, 10_000  # texts that are not read again, and the characters of one
_KEPT_SOURCE_FILES_MAX = 10_000  # of the plans of one version
_kept: dict[tuple[str, str], Any] = {}
# DuckDB may compute such a word when it binds a text.
_CHANGING_WORDS = re.compile("now|today|yesterday|tomorrow|current|local|random|uuid|setting|variable").search
_DEFINITIONS = " UNION ALL ".join(f"SELECT sql FROM duckdb_{of}() WHERE NOT internal" for of in ("tables", "views"))
_COLLATED = f"(SELECT count(*) FROM ({_DEFINITIONS}) WHERE sql ILIKE '%collate%')"  # tables and views that say so


@overload
def sql(
    query: str, con: duckdb.DuckDBPyConnection | None = None, *, explain: Literal[False] = False, **tables: Any
) -> duckdb.DuckDBPyRelation: ...
@overload
def sql(query: str, con: duckdb.DuckDBPyConnection | None = None, *, explain: bool, **tables: Any) -> Any: ...
def sql(
    query: str, con: duckdb.DuckDBPyConnection | None = None, *, explain: bool = False, **tables: Any
) -> duckdb.DuckDBPyRelation | str:
    """Run a DuckDB query over tables. DuckDB reads only the files and row groups that can match its conditions.

        ss.sql("SELECT action, count(*) FROM lake WHERE ts >= '2026-01-01' GROUP BY 1", lake=ss.open("lake/events"))

    Args:
        query: one SELECT statement in DuckDB's SQL, without the character NUL: write it as chr(0).
        con: a connection to run it on, which may have other tables. Its time zone applies. None: a private connection,
            in UTC.
        explain: return a text instead, with the files that each table reads, and why.
        tables: by their names in the query: tables of `open` and `create`, and anything that DuckDB reads from Python
            (Arrow tables, data frames, relations of `con`).

    Returns a relation, which DuckDB runs when its rows are fetched. It is fixed to the versions that the tables have
    now. Other tables of the query are read as they are now: call again after they changed.

    Raises PredicateError for a text that DuckDB cannot read or bind, SchemaError for a table in which the name of a
    column is empty, InvalidArgumentError for bad arguments and for a DuckDB before 2.0, and NotReadableError for files
    that are missing or changed.
    """
    lakes = {name.casefold(): one for name, one in tables.items() if hasattr(one, "handle") and hasattr(one, "scan")}
    if not lakes:
        raise InvalidArgumentError('no table of Skipstone is given: sql("SELECT ... FROM lake", lake=ss.open(path))')
    if not is_supported():
        raise InvalidArgumentError(f"sql() needs DuckDB 2.0 or newer, not {duckdb.__version__}: pip install -U duckdb")
    with no_fork():
        objects = {name: one for name, one in tables.items() if name.casefold() not in lakes}
        planned = _Query(_Session(con, objects, query), lakes)
        return planned.explanation() if explain else planned.relation()


class _Session:
    """A connection (None: a private one), and the objects of Python that a text may name."""

    def __init__(self, connection: Any, objects: dict[str, Any], query: str):
        self.connection = query_connection() if connection is None else connection
        self.objects, self.query, self.is_private = objects, query, connection is None

    def run(self, text: str, method: str = "sql") -> Any:
        """The relation of a text. DuckDB finds the objects as variables of a frame that has nothing else."""
        names = {f"{PREFIX}run": getattr(self.connection, method), f"{PREFIX}text": text, **self.objects}
        try:
            return eval(f"{PREFIX}run({PREFIX}text)", {"__builtins__": {}}, names)
        except duckdb.Error as error:
            raise PredicateError(f"DuckDB cannot run this: {message_of(error)}", text=self.query) from None

    def values(self, *expressions: str) -> Sequence[Any]:
        """The values of some expressions. `execute` does not bind the text twice, as a relation does."""
        return self.run(f"SELECT {', '.join(expressions)}", "execute").fetchall()[0]

    def settings(self) -> Sequence[Any]:
        """The time zone, the calendar, and whether a number divided by zero is infinite."""
        if self.is_private:
            return "UTC", "gregorian", True
        return self.values(*(f"current_setting('{name}')" for name in _SETTINGS))

    def plan(self, text: str) -> QueryPlan:
        """The bound plan of a query. Raises ValueError if DuckDB has none, or writes no JSON (a constant of NaN)."""
        planned = json.loads(*self.values(f"json_serialize_plan({string_sql(text)}, optimize := false)"))
        if planned["error"]:
            raise ValueError(message_of(Exception(planned["error_message"])))
        return QueryPlan(planned["plans"][0], _MARK)

    def kept(self, kind: str, text: str, read: Callable[[str], T]) -> T:
        """What `read` returns for a text. On the private connection a text always has one meaning."""
        found = _kept.get((kind, text)) if self.is_private else None
        if found is None:
            found = read(text)
            if self.is_private and len(text) <= _KEPT_TEXT_MAX:
                if len(_kept) >= _KEPT_MAX:
                    _kept.clear()
                _kept[kind, text] = found
        return found


@dataclass
class _Parsed:
    """The text of a query with a mark in the place of each use of a table: `_MARK`, and the use's number. So it is
    written once, over empty tables for the plan, and over files for the relation.

    text        the text, with marks
    tables      of each use: the parts of the table's name, and its alias in the query, if any
    ctes        the names that WITH defines, in lower case
    names       as of `_names_used`
    is_lasting  the plan over empty tables depends on nothing else
    """

    text: str
    tables: list[tuple[list[str], str]]
    ctes: set[str]
    names: set[str] | None
    is_lasting: bool

    @classmethod
    def of(cls, session: _Session, query: str) -> _Parsed:
        """Raises PredicateError if the query is not one SELECT statement."""
        if "\0" in query:  # where DuckDB's trees cut a literal off
            raise PredicateError("a query cannot contain the character NUL: write it as chr(0)", text=query)
        tree = json.loads(*session.values(f"json_serialize_sql({string_sql(query)})"))
        if tree["error"] or len(tree["statements"]) != 1:
            why = tree.get("error_message", "it has several statements")
            raise PredicateError(f"a query is one SELECT statement: {why}", text=query)
        nodes, names = list(nodes_of(tree)), _names_used(tree)
        ctes = {one["key"].casefold() for node in nodes if node.get("cte_map") for one in node["cte_map"]["map"]}
        tables: list[tuple[list[str], str]] = []
        is_lasting = True
        for node in nodes:
            is_lasting = is_lasting and node.get("type") not in ("TABLE_FUNCTION", "PIVOT", "SHOW_REF")
            if node.get("type") != "BASE_TABLE":
                continue
            parts = [node[part] for part in ("catalog_name", "schema_name", "table_name") if node[part]]
            if node["at_clause"]:
                is_lasting = False
            elif len(parts) > 1 or parts[0].casefold() not in ctes:
                mark = f"{_MARK}{len(tables)}_"
                tables.append((parts, node["alias"]))
                node |= {"catalog_name": "", "schema_name": "", "table_name": mark, "qualified_name": {"path": [mark]}}
        (text,) = session.values(f"json_deserialize_sql({string_sql(json.dumps(tree))})")
        if text.count(_MARK) != len(tables):
            raise PredicateError(f"a query cannot contain {_MARK!r}", text=query)
        return cls(text, tables, ctes, names, is_lasting and not _CHANGING_WORDS(text.casefold()))

    def over(self, source: Callable[[int], str]) -> str:
        """The query over a source for each use of a table."""
        pieces = self.text.split(_MARK)
        numbered = (piece.partition("_") for piece in pieces[1:])
        return "".join([pieces[0], *(source(int(number)) + rest for number, _, rest in numbered)])


@dataclass
class _Use:
    """One use of a table in the query.

    alias         " AS name" if the query gives the table no alias, else empty
    columns       its columns, with DuckDB's types; none if there is no such table
    table         a table of Skipstone; None for another one
    conditions    what the scan was planned by, for people
    """

    name: str
    alias: str
    full_name: str
    columns: dict[str, str]
    table: Any
    plan: Plan | None = None
    conditions: list[str] = field(default_factory=list)
    reader: str = "DuckDB"


class _Query:
    """A query, with a planned scan for each use of a table."""

    def __init__(self, session: _Session, lakes: dict[str, Any]):
        self._session = session
        self._parsed = session.kept("query", session.query, partial(_Parsed.of, session))
        self._uses = self._tables(lakes)
        if not any(use.table is not None for use in self._uses):
            names = ", ".join(lakes)
            raise PredicateError(f"the query reads none of the tables that were given: {names}", text=session.query)
        self._note = self._plan_scans()

    def relation(self) -> Any:
        """The relation over what is left of each table."""
        return self._session.run(self._parsed.over(self._source))

    def explanation(self) -> str:
        """What `relation` would read, for people."""
        lines = [self._note] if self._note else []
        for number, use in enumerate(self._uses):
            if use.plan is not None and use.table is not None:
                self._source(number)
                kept, total = use.plan.files().num_rows, use.table.files().num_rows
                lines.append(f"{use.name}: {kept:,} of {total:,} files, read by {use.reader}")
                lines += [f"  where {condition}" for condition in use.conditions]
        return "\n".join(lines)

    def _tables(self, lakes: dict[str, Any]) -> list[_Use]:
        """The uses of tables in the query."""
        ctes = self._parsed.ctes
        if ctes & set(lakes):
            message = f"WITH defines {min(ctes & set(lakes))!r}, a table that was given: give one another name"
            raise PredicateError(message, text=self._session.query)
        uses: list[_Use] = []
        for parts, alias in self._parsed.tables:
            name, full_name = parts[-1], ".".join(map(quoted, parts))
            table = lakes.get(name.casefold()) if len(parts) == 1 else None
            columns: dict[str, str] = {}
            if table is not None:
                check_answers(table.handle)
                columns = _columns_of(table.schema)
            else:
                with contextlib.suppress(PredicateError):  # the query itself raises it
                    found = self._session.run(f"FROM {full_name}")
                    columns = dict(zip(found.columns, map(str, found.types), strict=True))
            uses.append(_Use(name, "" if alias else f" AS {quoted(name)}", full_name, columns, table))
        return uses

    def _plan_scans(self) -> str:
        """Plan a scan of each table by its conditions in DuckDB's plan. Return why there is no plan, or ""."""
        note, uses, keys = "", {}, {}
        zone, calendar, has_infinity = self._session.settings()
        is_utc = zone in ("UTC", "Etc/UTC") and calendar == "gregorian"
        if not has_infinity:
            note = "nothing is skipped, since the connection divides by zero in another way"
        else:
            try:
                self._check_collations()
                text = self._parsed.over(self._empty_table)
                is_kept = self._parsed.is_lasting and all(use.columns for use in self._uses)
                found = self._session.kept("plan", text, self._session.plan) if is_kept else self._session.plan(text)
                uses, keys = found.uses, found.keys
            except (PredicateError, ValueError) as error:
                note = f"nothing is skipped, since DuckDB shows no plan of the query: {error}"
        for number, use in enumerate(self._uses):
            if use.table is not None:
                of_use = uses.get(number, TableUse())
                nodes = [self._condition(use, one, is_utc) for one in of_use.conditions]
                among = [one for one in of_use.among if is_utc or not is_of_zone(one[0])]
                nodes += [self._among(use, value, keys.get(key), uses) for value, key in among]
                known = tuple(node for node in nodes if node is not None)
                names = self._parsed.names
                used = [name for name in use.columns if names is None or name.casefold() in names]
                columns = list(use.columns) if note else used or list(use.columns)[:1]
                use.plan = use.table.scan(And(known) if known else None, columns=columns)
                if (first := of_use.first) is not None and not known and (is_utc or not is_of_zone(first[0])):
                    use.plan = _of_first(use, use.plan, *first)
        return note

    def _check_collations(self) -> None:
        """Raise PredicateError if texts of another table may have a collation, which no empty table has."""
        others = [use for use in self._uses if use.table is None and use.columns]
        has_relations = any(isinstance(one, duckdb.DuckDBPyRelation) for one in self._session.objects.values())
        if not others or not (has_relations or self._session.values(_COLLATED)[0]):
            return
        for use in others:
            (text,) = self._session.values(f"json_serialize_plan({string_sql(f'FROM {use.full_name}')})")
            if json.loads(text)["error"] or re.search('"collation":"[^"]', text):
                raise PredicateError(f"texts of {use.name} may have a collation", text=self._session.query)

    def _empty_table(self, number: int) -> str:
        use = self._uses[number]
        if not use.columns:
            return use.full_name
        nulls = ", ".join(f"CAST(NULL AS {dtype}) AS {quoted(name)}" for name, dtype in use.columns.items())
        return f"(SELECT {nulls} WHERE {marker(_MARK, number)}){use.alias}"

    def _condition(self, use: _Use, condition: Bound, is_utc: bool) -> Node | None:
        """A condition on our table, as `where=` would read it; None for one that is not understood."""
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
            return one._replace(children=tuple(map(self._with_instants, one.children)))
        (text,) = self._session.values(f"CAST({expression_sql(one, ())} AT TIME ZONE 'UTC' AS VARCHAR)")
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
            query = f"SELECT DISTINCT {key} FROM {other.full_name} WHERE {where} LIMIT {KEYS_MAX + 1}"
            found = self._session.run(query).to_arrow_table().column(0)
            ends = map(literal_value, pc.min_max(found).values()) if value.op == "cast" else ()
            if len(found) <= KEYS_MAX and not INFINITE_NS & {abs(getattr(end, "ns", 0)) for end in ends}:
                use.conditions.append(f"{quoted(name)} is among {len(found):,} keys of {other.name}")
                if len(found) <= LISTED_KEYS_MAX:
                    return prepare(col(name).is_in(found), use.table.schema)
                if not pa.types.is_floating(found.type):  # the range would leave NaN out
                    return prepare(col(name).between(*pc.min_max(found).values()), use.table.schema)
        return None

    def _source(self, number: int) -> str:
        """A read of files, or, if that is not exact, our own scan as an object of Python."""
        use = self._uses[number]
        if use.plan is None:
            return use.full_name
        try:
            source = source_of(use.plan.planning, f"{PREFIX}{number}_")
            text, tables = source.text, source.tables
        except (NotPlainError, SchemaError) as error:
            from .lake_dataset import LakeDataset

            use.reader = f"Skipstone: {error}"
            text, tables = f"FROM {PREFIX}{number}", {f"{PREFIX}{number}": LakeDataset(use.plan)}
        self._session.objects |= tables
        return f"({text}){use.alias}"


def _of_first(use: _Use, plan: Plan, key: Bound, count: int, is_max: bool) -> Plan:
    """The plan, without files that have none of the first rows of an order: enough rows of others come before."""
    name, planning = _column_of(key, list(use.columns)), plan.planning
    if name is None:
        return plan
    units = planning.pruned.units
    bounds = bounds_of(planning.column_bounds(name), planning.instant.schema.field(name).type, units.count)
    end = end_of_first(bounds, units.row_counts, units.exact, SortKey(name, is_max), max(count, 1))
    if end is None:
        return plan
    value = value_of(end, bounds.type)
    use.conditions.append(f"{quoted(name)} is among the first {count:,} {'descending' if is_max else 'ascending'}")
    node = prepare(col(name) >= value if is_max else col(name) <= value, planning.instant.schema)
    return Plan(PlannedScan(planning.request, node))


def _names_used(tree: dict[str, Any]) -> set[str] | None:
    """The names, in lower case, of the columns that a query may use; None if it may use all of a table."""
    names, tables, alone = set[str](), set[str](), set[str]()
    for node in nodes_of(tree):
        kinds = {node.get("class"), node.get("ref_type"), str(node.get("type"))}
        if kinds & {"STAR", "POSITIONAL_REFERENCE", "NATURAL", "PIVOT", "SHOW_REF"} or node.get("column_name_alias"):
            return None
        if "table_name" in node:
            tables |= {node["table_name"].casefold(), node["alias"].casefold()}
        parts = [part.casefold() for part in node.get("column_names") or ()]
        names.update(parts, (name.casefold() for name in node.get("using_columns") or ()))
        alone.update(parts if len(parts) == 1 else ())
    return None if alone & tables else names  # the name of a table is its whole row


@lru_cache(maxsize=64)
def _columns_of(schema: pa.Schema) -> dict[str, str]:
    """The columns of a table that queries may name, with DuckDB's types. Raise SchemaError for a column without one."""
    if "" in schema.names:
        raise SchemaError("column '' has no name that a query could contain: rename it with table.alter(rename=)")
    fields = [one for one in schema if not any(map(_is_unknown, values_within("", one.type)))]
    return {one.name: type_text(one.type) or duckdb_type(one, "") for one in fields}


def _is_unknown(value: tuple[str, pa.DataType]) -> bool:
    """Whether DuckDB has no such type: queries cannot name such a column."""
    return pa.types.is_float16(value[1]) or pa.types.is_decimal256(value[1])


def _column_of(value: Bound, names: Sequence[str]) -> str | None:
    """The name of a column that is compared as it is, or by a cast that keeps each value."""
    while value.op == "cast":
        source, target = arrow_type(value.children[0].type), arrow_type(value.type)
        if source is None or target is None or not is_exact_widening(source, target):
            return None
        value = value.children[0]
    return names[value.value] if value.op == "column" else None


# -- the rows of a plan as a SELECT over `read_parquet` ----------------------------------------------------------------


class NotPlainError(Exception):
    """DuckDB cannot read the rows exactly; the message states why."""


@dataclass
class Source:
    """The rows of a plan: the text of a SELECT, the tables that it joins by name, and the files that it reads."""

    text: str
    tables: dict[str, pa.Table]
    tasks: list[FileTask]


def source_of(planning: PlannedScan, prefix: str) -> Source:
    """What DuckDB reads for a plan. `prefix`: of the names of tables. A version keeps it for the next equal plan.

    Raises NotPlainError if DuckDB cannot read the rows exactly, and NotReadableError for a file that has changed.
    """
    kept: dict[Any, Source] = kept_of(planning.snapshot).setdefault("sources", {})
    source = kept.get((planning.bound, planning.columns))
    if source is None:
        source = _written(planning, prefix)
        if not source.tables and not planning.deletes.rows and len(source.tasks) <= KEPT_FILES_MAX:
            if sum(len(one.tasks) for one in list(kept.values())) > _KEPT_SOURCE_FILES_MAX:
                kept.clear()
            tasks = [replace(task, rows=None, filters={}, fine=()) for task in source.tasks]
            kept[planning.bound, planning.columns] = replace(source, tasks=tasks)
        return source
    if planning.request.scan_log is not None or is_observed():
        planning.pruned  # noqa: B018 - the scan is logged
    with planning.reporting_changes():
        check_identities(source.tasks, planning.storage)
    return source


def _written(planning: PlannedScan, prefix: str) -> Source:
    if to_merge(planning).any():
        raise NotPlainError("slices are merged by the reader of their own format")
    answer = answered_by_index(planning, planning.columns)
    if answer is not None and answer.is_whole:
        raise NotPlainError(answer.text)
    planning.check_readable()
    context = replace(planning.context, bound=Constant(True))
    reader = DuckDBReader(planning, context)
    pairs = _pairs(planning)
    if reader.refusal or not all(map(reader.served, pairs)):
        raise NotPlainError(reader.why_not() or "paths of files have characters that DuckDB expands")
    tasks = [task for task, _ in pairs]
    with planning.reporting_changes():
        check_identities(tasks, planning.storage)
    writer, schema = reader.writer, context.schema
    within = {name: list(values_within(name, schema.field(name).type)) for name in writer.used}
    paths = {name: [path for path, _ in values if path] for name, values in within.items()}
    writer.hidden = {name for name in paths if not reader.is_ordered(paths[name])}  # lists and maps have no statistics
    has_floats = any(pa.types.is_floating(dtype) for values in within.values() for _, dtype in values)
    writer.options = ", can_have_nan = true" if has_floats else ""
    selects: list[str] = []
    tables: dict[str, pa.Table] = {}
    by_schema: dict[int, list[Pair]] = {}
    for piece in _pieces(pairs):
        by_schema.setdefault(piece[0].schema_id, []).append(piece)
    columns = ", ".join(map(quoted, context.columns))
    for number, pieces in by_schema.items():
        writer.prefix = f"{prefix}{number}_"
        query = writer.write(pieces, with_constants=True)
        if query is None:
            raise NotPlainError("a value has no text")
        with cursor() as opened:
            reader.check_types(pieces[0][0], opened)
        selects.append(f"SELECT {columns} FROM ({query.text})")
        tables |= query.tables
    if not selects:
        nulls = (f"CAST(NULL AS {_columns_of(schema)[name]}) AS {quoted(name)}" for name in context.columns)
        selects = [f"SELECT {', '.join(nulls)} WHERE FALSE"]
    return Source(" UNION ALL ".join(selects), tables, tasks)


def _pairs(planning: PlannedScan) -> list[Pair]:
    """The remaining files, with their row groups and rows if an index other than statistics knows these: DuckDB
    skips row groups by statistics itself."""
    if not planning.pruned.fine and planning.pruned.rows_to_read is None:
        return [(task, RowGroups(None)) for task in planning.tasks_of_whole_files()]
    return planning.pairs_to_read()


def _pieces(pairs: list[Pair]) -> list[Pair]:
    """The files, by row groups and rows if that saves half of the rows.

    DuckDB skips row groups by their statistics, and pushes more into one SELECT than into several.
    """
    kept = sum(rows_read(*pair) for pair in pairs)
    if len(pairs) <= _PARTS_MAX and 2 * kept <= sum(task.row_count for task, _ in pairs):
        return pairs
    return [(task if task.rows is None else replace(task, rows=None), RowGroups(None)) for task, _ in pairs]
