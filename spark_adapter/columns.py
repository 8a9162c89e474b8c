"""Predicates as Spark means them, read into ours under a table's schema and a session's settings.

    from_tree(tree, schema, session) -> Node    what Spark means by an expression, in our nodes
    text_tree(text) -> Tree                     SQL text that Spark's parser and DuckDB's read alike
    where_node(where, schema)                   any predicate but a Column, as `Table.scan` takes it
    without_unknowns(node) -> Node              a predicate that is TRUE wherever the given one is, all understood

An expression of Spark is a small tree here: `catalyst` reads it from the JVM, and `text_tree` from a text if there is
no session: in options of a load, in executors, and over Spark Connect.

A part that may mean something else to Spark than to us (`spark_semantics`), or that cannot be read, becomes `Unknown`:
it never prunes, and Spark itself tests the rows by it. Names are resolved as in Spark: without regard to case, unless
the session is set otherwise; a name with dots is one name only between backticks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from ..engine.predicates import (
    And,
    Cast,
    Column,
    Comparison,
    Constant,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    StartsWith,
    Unknown,
    bind,
    is_nan,
    resolve,
    unknowns,
)
from ..engine.predicates.coerce import is_list, is_text, plain_type
from ..engine.predicates.duckdb_trees import Parsed, cast_type, constant_of, parsed
from ..engine.predicates.literals import Elements, LiteralValue, Temporal, literal_value, parse_temporal
from ..engine.predicates.required_texts import AllOf, Required, Text, texts_of_regex
from ..engine.predicates.sql_allowed import in_duckdb_sql, parse_sql
from ..errors import PredicateError
from .options import Request, decode_predicate, encode_predicate
from .spark_semantics import (
    Call,
    CastTo,
    ComparedColumn,
    Name,
    Opaque,
    Session,
    Tree,
    Value,
    cast_operand,
    columns_agree,
    compared,
    listed,
    plain_operand,
)

_COMPARISONS = frozenset({"=", "<=>", "!=", "<", "<=", ">", ">="})
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
}
_ELEMENT_TYPES: dict[str, Callable[[pa.DataType], bool]] = {  # by the type of a literal
    "boolean": pa.types.is_boolean,
    "int": pa.types.is_integer,
    "double": pa.types.is_float64,
    "string": is_text,
}
_SQL_CALLS = frozenset({"isnull", "isnotnull", "isnan", "startswith", "endswith", "contains"})
_SQL_WORDS = re.compile(r"current_\w+|localtime\w*|user|session_user", re.IGNORECASE)  # values of the session
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_WAYS_OUT = "make the predicate where the session is, by sks.predicate(spark, text, coarse) or sks.scan"
# SQL that Spark's parser and ours read alike: no escapes, adjacent strings, typed numbers, comments, double quotes or
# strings after a letter: DuckDB 1.4 reads X'00ff' as the text x00ff.
_PLAIN_SQL = re.compile(
    r"(?:\s+|'[^'\\]*'(?!\s*')|`[^`.]+`|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])"
    r"|(?![A-Za-z]')[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
    r"|<=>|<>|!=|<=|>=|[=<>(),+%]|-(?!-)|/(?!\*)|(?<!/)\*(?!/))*",
    re.ASCII,
)


def quoted(*parts: str) -> str:
    """Write a name as Spark takes it literally, whatever characters its parts contain."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


NESTED_TOO_DEEPLY = "the predicate is nested too deeply; use isin for a long list of values"


class _NotUnderstoodError(Exception):
    """One part cannot be read; it becomes Unknown with this reason."""


def from_tree(tree: Tree, schema: pa.Schema, session: Session) -> Node:
    """Return the predicate that a tree means over a table of this schema.

    Raises PredicateError for a name that is not in the table, a tree nested too deeply, and for what depends on a
    setting that `session` does not know.
    """
    try:
        return _Reader(schema, session).predicate(tree)
    except _RefusedError as error:
        raise PredicateError(str(error)) from None  # a name that users can catch
    except RecursionError:
        raise PredicateError(NESTED_TOO_DEEPLY) from None


def text_tree(text: str) -> Tree:
    """The tree of a text of SQL if no Spark parser is available, by DuckDB's. Opaque if Spark's may read it
    otherwise.

    Raises PredicateError if it is no SQL.
    """
    if not _PLAIN_SQL.fullmatch(text):
        return Opaque(text, "SQL with escapes or signs that Spark may read in its own way")
    return _tree_of_sql(parsed(parse_sql(in_duckdb_sql(text))))


def without_unknowns(node: Node, keeps: bool = True) -> Node:
    """A predicate that is TRUE for every row for which `node` is, without Unknown parts, except those that imply
    something of list elements: they are TRUE for every row.

    With FALSE < NULL < TRUE, AND is the minimum, OR the maximum, and NOT reverses the order. So an unknown part becomes
    TRUE under an even number of NOTs, and FALSE under an odd one.
    """
    if isinstance(node, Unknown) and keeps and node.implied is not None:  # Spark tests the rows by it
        return replace(node, engine="spark")
    if isinstance(node, Unknown):
        return Constant(keeps)
    if isinstance(node, Not):
        return Not(without_unknowns(node.child, not keeps))
    if isinstance(node, And | Or):
        return type(node)(tuple(without_unknowns(child, keeps) for child in node.children))
    return node


class _Reader:
    def __init__(self, schema: pa.Schema, session: Session):
        self._schema, self._session = schema, session

    def predicate(self, tree: Tree) -> Node:
        """What a tree means; parts that are not understood are Unknown."""
        try:
            node = self._understood(tree)
            if isinstance(node, And | Or | Not | Constant | Unknown):
                return node
            unknown = unknowns(bind(node, self._schema))
        except _NotUnderstoodError as reason:
            return Unknown(str(tree), str(reason), implied=self._implied(tree))
        except _RefusedError:
            raise
        except PredicateError as error:  # not one of our predicates; Spark may understand it, or raise its own error
            return Unknown(str(tree), str(error))
        return Unknown(str(tree), unknown[0].reason) if unknown else node

    def _implied(self, tree: Tree) -> Node | None:
        """What `array_contains` of a literal of the elements' own type implies of them."""
        if not isinstance(tree, Call) or tree.name != "array_contains" or len(tree.arguments) != 2:
            return None
        lists, sought = tree.arguments
        if not isinstance(lists, Name) or not isinstance(sought, Value):
            return None
        try:
            column, kind = self._column(lists.parts)
        except (_NotUnderstoodError, PredicateError):
            return None
        is_same_type = _ELEMENT_TYPES.get(sought.type)
        if is_same_type is None or not is_list(kind) or not is_same_type(plain_type(kind.value_type)):
            return None
        return Comparison("=", Elements(column.name), Literal(sought.value))

    def _understood(self, tree: Tree) -> Node:
        if isinstance(tree, Call):
            return self._call(tree)
        if isinstance(tree, Value) and tree.type in ("boolean", "null"):
            return Constant(tree.value)  # type: ignore[arg-type]
        if isinstance(tree, Name):
            return self._comparison("=", tree, Value("boolean", True))
        raise _NotUnderstoodError(tree.reason if isinstance(tree, Opaque) else "it is no truth value")

    def _call(self, tree: Call) -> Node:
        match tree.name, tree.arguments:
            case ("and" | "or") as name, parts:
                return (And if name == "and" else Or)(tuple(map(self.predicate, parts)))
            case "!", (inner,):
                return Not(self.predicate(inner))
            case op, (left, right) if op in _COMPARISONS:
                return self._comparison(op, left, right)
            case "isnull", (operand,):
                return IsNull(self._operand(operand).node)
            case "isnotnull", (operand,):
                return Not(IsNull(self._operand(operand).node))
            case "isnan", (operand,):
                return self._is_nan(operand)
            case "between", (value, low, high):
                return And((self.predicate(Call(">=", (value, low))), self.predicate(Call("<=", (value, high)))))
            case "in", (value, *values):
                return self._in(value, tuple(values))
            case "startswith", (left, right):
                return StartsWith(*self._text(left, right))
            case "like", (left, right, *escape) if len(escape) < 2:
                return self._like(left, right, *escape)
            case ("contains" | "endswith") as name, (left, right):
                column, text = self._text(left, right)
                return Like(column, f"%{_escaped(text)}{'%' if name == 'contains' else ''}", "\\")
            case "rlike", (left, right):
                # Java and RE2 read alike what is required of the texts. Spark tests the rows.
                column, pattern = self._text(left, right)
                tested, implied = Unknown(str(tree), "Spark tests the rows"), _likes(texts_of_regex(pattern), column)
                return tested if implied is None else And((implied, tested))
        raise _NotUnderstoodError(f"{tree.name} is not understood")

    def _comparison(self, op: str, left: Tree, right: Tree) -> Node:
        if isinstance(left, Value) and not isinstance(right, Value):
            op, left, right = _FLIPPED.get(op, op), right, left
        if isinstance(right, Value):
            first = self._operand_beside(left, [right])
            node = compared(op, first, right, self._session_of(left), f"{left} {op} {right}")
            if node is None:
                raise self._not_alike(f"a {first.kinds[0]} with a {right.type}", f"{left} {op} {right}")
            if self._session.time_zone is None and unknowns(node):
                raise _RefusedError(f"{left} {op} {right}: the instant depends on a session's time zone; {_WAYS_OUT}")
            return node
        first, second = self._operand(left), self._operand(right)
        if not columns_agree(first, second):
            raise self._not_alike(f"{first.kinds[0]} with {second.kinds[0]}", f"{left} {op} {right}")
        return Comparison(op, first.node, second.node)

    def _in(self, left: Tree, right: tuple[Tree, ...]) -> Node:
        values = [value for value in right if isinstance(value, Value)]
        if not right:  # FALSE, or NULL in some sessions
            return And((Constant(False), Unknown(f"{left} IN ()", "Spark tests the rows")))
        if len(values) < len(right) or len({value.type for value in values} - {"null"}) > 1:
            raise _NotUnderstoodError("a list of literals of one type is expected")
        operand = self._operand_beside(left, values)
        node = listed(operand, values, self._session_of(left))
        if node is None:
            raise self._not_alike(f"a {operand.kinds[0]} with this list", f"{left} IN (...)")
        return node

    def _not_alike(self, pair: str, text: str) -> Exception:
        """The error of a comparison that Spark may make otherwise than we do."""
        if self._session.time_zone is None:  # no session is there to ask
            return _RefusedError(f"{text}: Spark compares {pair} as a session says (ANSI, time zone); {_WAYS_OUT}")
        return _NotUnderstoodError(f"Spark may compare {pair} in its own way")

    def _is_nan(self, tree: Tree) -> Node:
        operand = self._operand(tree)
        if not all(pa.types.is_floating(kind) for kind in operand.kinds):
            raise _NotUnderstoodError("isnan is for floating point")
        return is_nan(operand.node)

    def _like(self, left: Tree, right: Tree, escape: Tree = Value("string", "\\")) -> Node:  # noqa: B008
        column, pattern = self._text(left, right)
        if not (isinstance(escape, Value) and isinstance(escape.value, str) and len(escape.value) == 1):
            raise _NotUnderstoodError("an escape of one character is expected")
        return Like(column, pattern, escape.value)

    def _text(self, left: Tree, right: Tree) -> tuple[Column | Cast, str]:
        """A column of texts, and the text that it is matched with."""
        operand = self._operand(left)
        if not (isinstance(right, Value) and isinstance(right.value, str)) or not is_text(operand.kinds[-1]):
            raise _NotUnderstoodError("a column of texts and a text are expected")
        return operand.node, right.value

    # -- operands -----------------------------------------------------------------------------------------------------

    def _operand_beside(self, tree: Tree, values: Sequence[Value]) -> ComparedColumn:
        """The operand that is compared with literals. Spark casts a time to the type of the literals, and an integer
        or a decimal to that of a floating-point literal, which `compared` and `listed` allow for."""
        if isinstance(tree, CastTo) and all(value.type in (tree.type, "null") for value in values):
            is_time, is_float = tree.type in ("timestamp", "timestamp_ntz"), tree.type in ("float", "double")
            if is_time or (is_float and not isinstance(tree.child, CastTo)):
                column, kind = self._column(self._path(tree.child))
                is_number = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and tree.type == "double")
                if is_number if is_float else pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
                    return plain_operand(column, kind)
        return self._operand(tree)

    def _session_of(self, tree: Tree) -> Session:
        """The settings by which an operand is compared: a plan may be older than those of now."""
        zone = tree.zone if isinstance(tree, CastTo) else None
        return self._session if zone is None else replace(self._session, time_zone=zone)

    def _operand(self, tree: Tree) -> ComparedColumn:
        if not isinstance(tree, CastTo):
            return plain_operand(*self._column(self._path(tree)))
        # Spark casts a BIGINT compared with a DECIMAL twice: each step keeps every value.
        inner, target = self._operand(tree.child), _type_named(tree.type)
        operand = None if target is None else cast_operand(inner, target)
        if operand is None:
            raise _NotUnderstoodError(f"a cast of a {inner.kinds[-1]} to {tree.type} may change values")
        return operand

    def _path(self, tree: Tree) -> tuple[str, ...]:
        if isinstance(tree, Name):
            return tree.parts
        raise _NotUnderstoodError(
            tree.reason if isinstance(tree, Opaque) else f"{tree} is no column, nor a cast of one that keeps its values"
        )

    def _column(self, parts: tuple[str, ...]) -> tuple[Column, pa.DataType]:
        """A column, or a field of a struct, by the parts of its name as Spark has them, and its type."""
        fields, path = list(self._schema), []
        for depth, part in enumerate(parts):
            same = [field for field in fields if self._is_name(field.name, part)]
            if len(same) != 1:
                if depth == 0 and not same:
                    raise _no_column(part, self._schema)
                raise _NotUnderstoodError(f"{'.'.join(parts)} is no field of structs, or more than one")
            kind = plain_type(same[0].type)
            path.append(same[0].name)
            fields = list(kind) if pa.types.is_struct(kind) else []
        name = ".".join(path)
        if resolve(name, self._schema).path != tuple(path):
            raise _NotUnderstoodError(f"{name!r} is more than one column")
        return Column(name), same[0].type

    def _is_name(self, name: str, other: str) -> bool:
        if name == other or self._session.case_sensitive is not False:  # not known without a session
            return name == other
        return name.lower() == other.lower() or name.upper() == other.upper()


def _escaped(text: str) -> str:
    """A text in a pattern of LIKE."""
    return "".join(f"\\{sign}" if sign in "\\%_" else sign for sign in text)


def _likes(required: Required, column: Column | Cast) -> Node | None:
    """What is required of a column, as LIKE of its texts; None if that is nothing, or case is ignored."""
    if isinstance(required, Text):
        return None if required.any_case else Like(column, f"%{_escaped(required.text)}%", "\\")
    parts = [_likes(part, column) for part in required.parts]
    known = tuple(part for part in parts if part is not None)
    if isinstance(required, AllOf):
        return And(known) if known else None
    return Or(known) if len(known) == len(parts) else None


class _RefusedError(PredicateError):
    """What no part of a predicate may say, understood or not."""


def _no_column(name: str, schema: pa.Schema) -> PredicateError:
    try:
        resolve(name, schema)
    except PredicateError as error:
        return _RefusedError(str(error))
    return _RefusedError(f"no column is named {name!r}")


def _type_named(name: str) -> pa.DataType | None:
    match = _DECIMAL.fullmatch(name)
    if match is None:
        return _TYPES.get(name)
    precision, scale = map(int, match.groups())
    return pa.decimal128(precision, scale) if scale <= precision <= 38 else None


def _tree_of_sql(tree: Parsed) -> Tree:
    """A text as any Column is read. Both parsers give this tree for the words and signs of `_PLAIN_SQL`."""
    op, children = tree.op, tree.children
    if op in ("and", "or"):
        return Call(op, tuple(map(_tree_of_sql, children)))
    if op in ("not", "not in", "is distinct"):
        positive = {"not in": "in", "is distinct": "<=>"}.get(op)
        return Call(
            "!", (Call(positive, tuple(map(_tree_of_sql, children))) if positive else _tree_of_sql(children[0]),)
        )
    if op == "!=" or op in _COMPARISONS or op in ("in", "between"):
        return Call(op, tuple(map(_tree_of_sql, children)))
    if op in ("is null", "is not null"):
        return Call("isnull" if op == "is null" else "isnotnull", (_tree_of_sql(children[0]),))
    if op in ("~~", "!~~", "like_escape", "not_like_escape"):
        like = Call(
            "like", tuple(map(_tree_of_sql, children)) + (() if len(children) == 3 else (Value("string", "\0"),))
        )
        return Call("!", (like,)) if op in ("!~~", "not_like_escape") else like
    if op in _SQL_CALLS:
        return Call(op, tuple(map(_tree_of_sql, children)))
    return _sql_operand(tree.json)


def _sql_operand(node: dict[str, Any]) -> Tree:
    kind = node.get("class")
    if kind == "COLUMN_REF" and not (len(node["column_names"]) == 1 and _SQL_WORDS.fullmatch(node["column_names"][0])):
        return Name(tuple(node["column_names"]))
    if kind == "CONSTANT":
        return _value_of(literal_value(constant_of(node)))
    if kind == "CAST" and not node.get("try_cast"):
        name, child = cast_type(node).lower(), node["child"]
        text = constant_of(child) if child.get("class") == "CONSTANT" else None
        if isinstance(text, str) and name in ("date", "timestamp"):
            moment = parse_temporal(text, name)
            if moment is not None and (name == "timestamp" or moment.kind == "date"):
                return _value_of(moment)
        elif child.get("class") == "COLUMN_REF":
            return CastTo(_sql_operand(child), name)
    return Opaque(f"a part that begins with {node.get('type')}", "it is not understood")


def _value_of(value: LiteralValue) -> Tree:
    if isinstance(value, Temporal):  # whether the timestamp had a zone is lost
        return Value("date" if value.kind == "date" else "timestamp_sql", value)
    for type_, kind in ((bool, "boolean"), (int, "int"), (float, "float"), (str, "string"), (bytes, "binary")):
        if isinstance(value, type_):
            return Value(kind, value)
    return Value("null", None) if value is None else Value("decimal", value)


# -- away from a session -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SparkPredicate:
    """The result of `predicate` for a text or a Column, with the settings of its session. It can be pickled. `str` of
    it is a value for option `where`: `.option("where", needles)`."""

    tree: Tree
    session: Session
    source: str = field(default="", compare=False)

    def node(self, schema: pa.Schema) -> Node:
        """What it means over a table of this schema; a part that is not understood is Unknown.

        Raises PredicateError for a name that is not in the table.
        """
        return from_tree(self.tree, schema, self.session)

    def __str__(self) -> str:
        return encode_predicate(self)

    def __repr__(self) -> str:
        return f"<predicate of Spark: {self.source}>"


def text_predicate(text: str) -> SparkPredicate:
    """What Spark means by a text in any session. Its `node` raises PredicateError, with the way out, if the meaning
    depends on a session: on its time zone, case sensitivity or ANSI mode.

    Raises PredicateError for a text that is no SQL, or that Spark's parser may read otherwise than ours.
    """
    tree = text_tree(text)
    if isinstance(tree, Opaque) and tree.text == text:
        raise PredicateError(f"{text}: {tree.reason}, so a session's parser must read it: {_WAYS_OUT}")
    return SparkPredicate(tree, Session(None, None), text)


def where_node(where: object, schema: pa.Schema) -> object:
    """A predicate of any form but a Column, as `Table.scan` takes it; a text as `text_predicate` reads it."""
    if isinstance(where, str):
        where = text_predicate(where)
    return where.node(schema) if isinstance(where, SparkPredicate) else where


def where_of(request: Request) -> Node | SparkPredicate | None:
    """The predicate of a load. Raises PredicateError as `text_predicate`, and for a pickle that is not ours."""
    if request.where is None:
        return None
    predicate = decode_predicate(request.where)
    return text_predicate(request.where) if predicate is None else predicate
