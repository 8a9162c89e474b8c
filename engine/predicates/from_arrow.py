"""pyarrow expressions, read from their serialized form.

pyarrow has no public API for the parts of an expression. Its pickle is an Arrow IPC file (Arrow C++, `expression.cc`,
"Serialize"): a record batch: its columns are the literals and options, its schema metadata is the tree in prefix order

    call NAME ... end NAME | field_ref NAME | nested_field_ref COUNT, and as many field_refs
    literal COLUMN | options COLUMN

This form is exact; the printed form drops types and abbreviates lists. Keys repeat, which pyarrow's own metadata hides,
so they are read through the C data interface.

A part in an unexpected form is Unknown, with its share of the serialized form. pyarrow tests it on rows (`validate`,
`evaluate`), with pyarrow's own comparisons, in which NaN is not greater than any value.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, empty_table
from ...base.versions import check_readable
from ...errors import PredicateError
from .ast import And, Comparison, Constant, In, IsNull, Like, Node, Not, Or, StartsWith, Unknown, member_of, too_deep
from .bind import bind
from .bound import resolve, unknowns
from .literals import Cast, Column, Literal, Operand

_COMPARISONS = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}


@dataclass
class _Call:
    """A call of a function. Its items in the serialized form are those from `start` to `stop`."""

    name: str
    start: int
    stop: int = 0
    arguments: list[Any] = field(default_factory=list)  # _Call, Column or pa.Scalar
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Field(Column):
    """A field of a struct, by its path."""

    path: tuple[str, ...] = ()


class _NotUnderstoodError(Exception):
    """Ends the reading of one part, which then becomes Unknown with this reason."""


def from_arrow(expression: pc.Expression, schema: pa.Schema | None = None, *, is_sql: bool = False) -> Node:
    """Return the predicate that a pyarrow expression means, with our comparisons: NaN > 5 is true; in pyarrow it is
    false. If a schema is given, pyarrow also tests the parts that we cannot test on columns of its types.

    If the expression is an engine's (`is_sql`), `isin` of a null is NULL, as in SQL and polars (FALSE in pyarrow), and
    pyarrow tests nothing, because its meaning may differ from that engine's.
    Raise PredicateError if a field of a struct has the dotted name of a column of the schema.
    """
    try:
        return _Reader(_Serialized.of(expression), schema, is_sql).predicate()
    except PredicateError:
        raise
    except (pa.ArrowException, ValueError, TypeError, LookupError, AttributeError, struct.error, StopIteration):
        check_readable()
        return Unknown(str(expression), "this pyarrow expression could not be read")
    except RecursionError:
        raise too_deep() from None


def top_level_names(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """Return the columns of a schema that an expression reads; all of them if that is unknown."""
    try:
        names = _names_in(_Serialized.of(expression))
    except (pa.ArrowException, ValueError, TypeError, LookupError, struct.error, StopIteration, RecursionError):
        return schema.names
    return [name for name in schema.names if name in names]


def _names_in(source: _Serialized) -> dict[str, None]:
    """Return the names of the columns that an expression reads, in any order."""
    return {(one.path[0] if isinstance(one, _Field) else one.name): None for one in _columns_in(_tree(source))}


def _columns_in(tree: Any) -> Iterator[Column]:
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, _Call):
            waiting.extend(part.arguments)
        elif isinstance(part, Column):
            yield part


def _check_paths(tree: Any, schema: pa.Schema | None) -> None:
    for column in _columns_in(tree) if schema is not None else ():
        if isinstance(column, _Field) and resolve(column.name, schema).path != column.path:
            raise PredicateError(f"{column.name!r} is a column, and the path of a field within {column.path[0]!r}, too")


def validate(expression: bytes, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that a serialized expression reads, after checking that pyarrow can test it on such rows."""
    names = _names_in(_Serialized.read(pa.py_buffer(expression)))
    for name in names:
        resolve(name, schema)
    columns = tuple(names)
    dtype = evaluate(expression, empty_table(schema).select(columns)).type
    if not pa.types.is_boolean(dtype):
        raise PredicateError(f"a predicate is true or false, and this pyarrow expression is {dtype}")
    return columns


def evaluate(expression: bytes, rows: pa.Table) -> pa.Array:
    """Return one outcome per row, from pyarrow. Raise PredicateError if pyarrow fails."""
    from pyarrow import acero

    try:
        test = pc.Expression._deserialize(pa.py_buffer(expression))
        plan = acero.Declaration.from_sequence(
            [
                acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)),
                acero.Declaration("project", acero.ProjectNodeOptions([test], ["outcome"])),
            ]
        )
        return combine(plan.to_table(use_threads=False).column(0))
    except pa.ArrowException as error:
        raise PredicateError(f"pyarrow cannot test this: {str(error).splitlines()[0]}") from None


_TEXT_TESTS = {
    "match_substring": "contains",
    "match_substring_regex": "regexp_matches",
    "match_like": "like_escape",
    "starts_with": "prefix",
    "ends_with": "suffix",
}


def text_test(expression: bytes, column: str) -> tuple[str, list[str], bool]:
    """Return the test of a column's texts in a serialized expression: DuckDB's function with the same meaning, its
    other arguments, and if case is ignored. Raise LookupError or ValueError for any other expression."""
    tree = _tree(_Serialized.read(pa.py_buffer(expression)))
    if not isinstance(tree, _Call) or tree.arguments != [Column(column)]:
        raise ValueError("no test of this column")
    name = _TEXT_TESTS[tree.name]
    escape = ["\\"] if name == "like_escape" else []
    return name, [tree.options["pattern"].as_py(), *escape], tree.options["ignore_case"].as_py()


# -- the serialized form ----------------------------------------------------------------------------------------------


class _ArrowSchema(ctypes.Structure):
    """The first fields of `struct ArrowSchema` of the Arrow C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


@dataclass(frozen=True)
class _Serialized:
    """The batch of literals and options, and the tree in prefix order."""

    batch: pa.RecordBatch
    items: list[tuple[str, str]]

    @classmethod
    def of(cls, expression: pc.Expression) -> _Serialized:
        _, (buffer, *_) = expression.__reduce__()
        return cls.read(buffer)

    @classmethod
    def read(cls, buffer: pa.Buffer) -> _Serialized:
        batch = pa.ipc.open_file(buffer).get_batch(0)
        return cls(batch, _metadata_items(batch.schema))

    def part(self, call: _Call) -> bytes:
        """Return the serialized form of one call."""
        metadata = pa.KeyValueMetadata(self.items[call.start : call.stop])
        schema = pa.schema(list(self.batch.schema), metadata=metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write(pa.RecordBatch.from_arrays(self.batch.columns, schema=schema))
        return sink.getvalue().to_pybytes()


def _metadata_items(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the keys and values of a schema's metadata, in order and with repeats."""
    capsule = schema.__arrow_c_schema__()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = _ArrowSchema.from_address(get_pointer(capsule, b"arrow_schema")).metadata
    if not address:
        return []
    position = 0

    def take_count() -> int:
        nonlocal position
        position += 4
        return struct.unpack("=i", ctypes.string_at(address + position - 4, 4))[0]

    def take_text() -> str:
        nonlocal position
        size_bytes = take_count()
        position += size_bytes
        return ctypes.string_at(address + position - size_bytes, size_bytes).decode()

    items = [(take_text(), take_text()) for _ in range(take_count())]
    del capsule  # it owns the memory until here
    return items


def _tree(source: _Serialized) -> Any:
    items, batch = source.items, source.batch
    calls: list[_Call] = []  # the calls that have not ended yet
    position = 0
    while True:
        tree: Any
        start = position
        key, value = items[position]
        position += 1
        if key == "call":
            calls.append(_Call(value, start))
            continue
        if key == "options":
            scalar = batch.column(int(value))[0]
            calls[-1].options = {field.name: scalar[field.name] for field in scalar.type}
            continue
        if key == "end":
            tree = calls.pop()
            tree.stop = position
        elif key == "literal":
            tree = batch.column(int(value))[0]
        elif key == "field_ref":
            tree = Column(value)
        elif key == "nested_field_ref":
            names = items[position : position + int(value)]
            position += int(value)
            if any(name_key != "field_ref" for name_key, _ in names):
                raise ValueError("a path that does not consist of names")
            tree = _Field(".".join(name for _, name in names), path=tuple(name for _, name in names))
        else:
            raise ValueError(f"{key} is not known")
        if not calls:
            break
        calls[-1].arguments.append(tree)
    if position != len(items):
        raise ValueError("more than one expression")
    return tree


# -- the tree ---------------------------------------------------------------------------------------------------------


def _text(tree: Any) -> str:
    if isinstance(tree, _Call):
        return f"{tree.name}({', '.join(_text(argument) for argument in tree.arguments)})"
    return str(tree)


class _Reader:
    """Reads one expression."""

    def __init__(self, source: _Serialized, schema: pa.Schema | None, is_sql: bool):
        self._source, self._schema, self._is_sql = source, schema, is_sql

    def predicate(self) -> Node:
        tree = _tree(self._source)
        _check_paths(tree, self._schema)
        return self._predicate(tree)

    def _predicate(self, tree: Any) -> Node:
        try:
            node = self._understood(tree)
            if self._schema is None or isinstance(node, And | Or | Not):
                return node
            reasons = unknowns(bind(node, self._schema))
            if not reasons or not isinstance(tree, _Call):
                return node
            reason = reasons[0].reason
        except _NotUnderstoodError as error:
            reason = str(error)
        if not isinstance(tree, _Call) or self._is_sql:
            return Unknown(_text(tree), reason)
        return Unknown(_text(tree), reason, "pyarrow", self._source.part(tree))

    def _understood(self, tree: Any) -> Node:
        if isinstance(tree, Column):
            return Comparison("=", tree, Literal(True))
        if not isinstance(tree, _Call):
            value = _literal(tree).value
            if value is None or isinstance(value, bool):
                return Constant(value)
            raise _NotUnderstoodError(f"{value!r} is no truth value")
        if tree.name in ("and_kleene", "or_kleene"):
            return self._connected(tree, And if tree.name == "and_kleene" else Or)
        if tree.name == "invert":
            return Not(self._predicate(tree.arguments[0]))
        if self._is_sql and tree.name == "if_else":
            return self._null_or(tree)
        return _leaf(tree, self._is_sql)

    def _null_or(self, tree: _Call) -> Node:
        """Read `if_else(is_valid(x), test, null)`, which is DuckDB's form of IN."""
        condition, test, otherwise = tree.arguments
        is_of_valid = isinstance(condition, _Call) and condition.name == "is_valid"
        if not is_of_valid or not isinstance(otherwise, pa.Scalar) or otherwise.is_valid:
            raise _NotUnderstoodError("if_else is not understood")
        column, node = _column(condition.arguments[0]), self._understood(test)
        if isinstance(node, In) and node.operand == column:  # NULL if x is
            return node
        return Or((And((Not(IsNull(column)), node)), And((IsNull(column), Constant(None)))))

    def _connected(self, tree: _Call, kind: type[And] | type[Or]) -> Node:
        # a & b & c nests to the left: a loop reads it, because recursion could exhaust the stack
        name, children = tree.name, []
        while isinstance(tree, _Call) and tree.name == name:
            children.append(self._predicate(tree.arguments[1]))
            tree = tree.arguments[0]
        children.append(self._predicate(tree))
        return kind(tuple(reversed(children)))


def _leaf(tree: _Call, is_sql: bool) -> Node:
    name, arguments, options = tree.name, tree.arguments, tree.options
    if name in _COMPARISONS:
        return Comparison(_COMPARISONS[name], _operand(arguments[0]), _operand(arguments[1]))
    if name == "is_valid":
        return Not(IsNull(_column(arguments[0])))
    if name == "is_null":
        if options["nan_is_null"].as_py():
            column = _column(arguments[0])
            raise _NotUnderstoodError(f"is_null with nan_is_null over {column}")
        return IsNull(_column(arguments[0]))
    if name == "is_nan":
        return Comparison("=", _column(arguments[0]), Literal(float("nan")))  # NULL for a null, unlike Spark's isnan
    if name == "is_in":
        column, members = _column(arguments[0]), _members(options)
        if not is_sql:
            return member_of(column, members)
        sought = In(column, tuple(m for m in members if m.value is not None))
        # A null in the list is polars' `is_in(..., nulls_equal=True)`: DuckDB passes no such list.
        return sought if len(sought.values) == len(members) else Or((sought, IsNull(column)))
    if name in ("starts_with", "match_like") and not options["ignore_case"].as_py():
        pattern = options["pattern"].as_py()
        column = _column(arguments[0])
        return StartsWith(column, pattern) if name == "starts_with" else Like(column, pattern, "\\")
    raise _NotUnderstoodError(f"{name} is not understood")


def _operand(tree: Any) -> Operand:
    if isinstance(tree, Column):
        return tree
    if isinstance(tree, pa.Scalar):
        return _literal(tree)
    if isinstance(tree, _Call) and tree.name == "cast" and "to_type" in tree.options:
        return Cast(_operand(tree.arguments[0]), tree.options["to_type"].type)
    raise _NotUnderstoodError(f"{_text(tree)} is no column, literal or cast")


def _column(tree: Any) -> Column:
    if isinstance(tree, Column):
        return tree
    raise _NotUnderstoodError(f"{_text(tree)} is no column")


def _literal(scalar: pa.Scalar) -> Literal:
    try:
        return Literal(scalar)
    except PredicateError as error:
        raise _NotUnderstoodError(error.message) from None


def _members(options: dict[str, Any]) -> tuple[Literal, ...]:
    # SetLookupOptions::NullMatchingBehavior: MATCH is 0, the default of isin
    if options["null_matching_behavior"].as_py() != 0:
        raise _NotUnderstoodError("is_in that skips nulls, or gives null for them")
    return tuple(_literal(scalar) for scalar in options["value_set"].values)
