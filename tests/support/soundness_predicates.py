"""Random predicates for the mass test, and an oracle that uses no code of the engine.

Pool           a few dozen leaves over a lake: each as a node, as DuckDB's SQL if the two mean the same, and as the
               outcome of every row, computed by `row_matches` once per distinct value
random_tree    AND, OR and NOT over a pool's leaves
outcomes_of    a tree's outcome in every row: 0 false, 1 null, 2 true, so that AND is the least and OR the greatest
where_of       the same predicate in a form that `scan` accepts: nodes, SQL text, built by & | ~, tuples, pyarrow's
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lake_strategies import PARTITION_TEXTS
from predicate_strategies import TIMES_IN_TEXT, leaf_columns, row_matches
from skipstone.engine.predicates import ast, parse
from skipstone.engine.predicates import literals as operands
from skipstone.errors import PredicateError
from soundness_duckdb import duck_leaf
from soundness_lakes import RandomLake
from soundness_values import ends_of

Tree = tuple  # ("leaf", number) | ("and" | "or", (tree, ...)) | ("not", (tree,))
_FALSE, _NULL, _TRUE = 0, 1, 2
_CODE = {False: _FALSE, None: _NULL, True: _TRUE}
_OPS = ["=", "=", "<=>", "!=", "<", "<=", ">", ">="]
_MOMENTS = [text for text in TIMES_IN_TEXT if text[2] != ":"]
_WIDER = {
    pa.int8(): [pa.int16(), pa.int64(), pa.float32()],
    pa.int32(): [pa.int64(), pa.float64(), pa.decimal128(12, 1)],
    pa.uint8(): [pa.int16(), pa.uint64()],
    pa.uint32(): [pa.int64()],
    pa.float32(): [pa.float64()],
    pa.decimal128(5, 2): [pa.decimal128(20, 4)],
    pa.date32(): [pa.timestamp("us")],
    pa.timestamp("ms"): [pa.timestamp("us")],
    pa.string(): [pa.binary(), pa.large_string()],
}
# Types to cast to of which SQL has no name, or to which DuckDB casts texts in its own way.
_WITHOUT_SQL = ("uint64", "large_string", "BLOB")


class Pool:
    """Leaves over one lake. All lists are by leaf number.

    nodes        the leaf as the engine gets it
    outcomes     int8 [rows]
    duck         DuckDB's SQL, or None if DuckDB means something else, or cannot express it
    tuples       the leaf as pyarrow's tuple, or None
    columns      names of the columns in it
    """

    def __init__(self, lake: RandomLake, rng: random.Random, size: int):
        self.lake, self.rng = lake, rng
        self.kinds = {n: k for n, k in leaf_columns(lake.table.schema).items() if n != "rid"}
        self.palettes = {**lake.palettes, "p": [-1, 0, 1, 2], "q": [t for t in PARTITION_TEXTS if t]}
        self._codes: dict[str, tuple[np.ndarray, list]] = {}
        self.nodes: list[ast.Node] = []
        self.outcomes: list[np.ndarray] = []
        self.duck: list[str | None] = []
        self.tuples: list[tuple | None] = []
        self.columns: list[tuple[str, ...]] = []
        for _ in range(size):
            self._add(*self._leaf())

    def _add(self, node: ast.Node, plain: ast.Node, columns: tuple[str, ...]) -> None:
        self.nodes.append(node)
        self.outcomes.append(self._outcome(plain, columns))
        self.duck.append(duck_leaf(node, self.kinds))
        self.tuples.append(_tuple_of(node))
        self.columns.append(columns)

    # -- drawing a leaf: as the engine gets it, the same without casts, the columns in it --

    def _leaf(self) -> tuple[ast.Node, ast.Node, tuple[str, ...]]:
        rng = self.rng
        name = rng.choice(list(self.kinds))
        kind = self.kinds[name]
        value_kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        plain, given = operands.Column(name), operands.Column(name)
        if rng.random() < 0.15 and value_kind in _WIDER:
            given = operands.Cast(given, rng.choice(_WIDER[value_kind]))
        kinds = ["compare"] * 6 + ["in"] * 3 + ["null", "columns", "constant"]
        if pa.types.is_string(value_kind) or pa.types.is_large_string(value_kind) or pa.types.is_binary(value_kind):
            kinds += ["like"] * 3 + ["starts"] * 2
        if pa.types.is_floating(value_kind):
            kinds += ["nan"]
        if pa.types.is_boolean(value_kind):
            kinds += ["flag"] * 2
        drawn = rng.choice(kinds)
        if drawn == "columns":
            return self._two_columns(name)
        if drawn == "constant":
            return (constant := ast.Constant(rng.choice([True, False, None]))), constant, ()
        make = getattr(self, f"_{drawn}")(name, value_kind)
        return make(given), make(plain), (name,)

    def _compare(self, name: str, kind: pa.DataType):
        op, literal = self.rng.choice(_OPS), self._literal(name, kind)
        if self.rng.random() < 0.2:
            return lambda operand: ast.Comparison(op, literal, operand)
        return lambda operand: ast.Comparison(op, operand, literal)

    def _in(self, name: str, kind: pa.DataType):
        count = self.rng.choice([0, 1, 2, 3, 5, 20])
        literals = tuple(self._literal(name, kind, nulls=0.1) for _ in range(count))
        negated = self.rng.random() < 0.4
        return lambda operand: ast.In(operand, literals, negated)

    def _null(self, name: str, kind: pa.DataType):
        return ast.IsNull

    def _nan(self, name: str, kind: pa.DataType):
        return ast.is_nan

    def _flag(self, name: str, kind: pa.DataType):
        return lambda operand: ast.Comparison("=", operand, operands.Literal(True))

    def _like(self, name: str, kind: pa.DataType):
        pattern = "".join(self.rng.choices(["%", "_", "a", "ab", "\\%", "\\_", "\\\\", "é", "x", "'"], k=3))
        if self.rng.random() < 0.6:
            text = self._text(name)
            cut = text[: self.rng.randint(0, len(text))]
            pattern = "".join("\\" + c if c in "%_\\" else c for c in cut) + self.rng.choice(["%", "%", "%", "", "_"])
        return lambda operand: ast.Like(operand, pattern, "\\")

    def _starts(self, name: str, kind: pa.DataType):
        text = self._text(name)
        prefix: str | bytes = text[: self.rng.randint(0, len(text))]
        if pa.types.is_binary(kind) and self.rng.random() < 0.7:
            value = self.rng.choice(self.palettes[name])
            prefix = value[: self.rng.randint(0, len(value))]
        return lambda operand: ast.StartsWith(operand, prefix)

    def _text(self, name: str) -> str:
        value = self.rng.choice(self.palettes[name])
        return value if isinstance(value, str) else value.decode("ascii", "ignore")

    def _two_columns(self, name: str) -> tuple[ast.Node, ast.Node, tuple[str, ...]]:
        kind = self.kinds[name]
        same = [other for other, other_kind in self.kinds.items() if other_kind == kind]
        twins = [other for other in same if other != name]
        if pa.types.is_integer(kind):
            twins += [other for other, other_kind in self.kinds.items() if pa.types.is_integer(other_kind)]
        other = self.rng.choice(twins or same)
        node = ast.Comparison(self.rng.choice(_OPS), operands.Column(name), operands.Column(other))
        return node, node, (name, other)

    def _literal(self, name: str, kind: pa.DataType, nulls: float = 0.04) -> operands.Literal:
        rng = self.rng
        if rng.random() < nulls:
            return operands.Literal(None)
        value = rng.choice(self.palettes[name])
        near = rng.random() < 0.4
        if pa.types.is_temporal(kind):
            if rng.random() < 0.06 and not pa.types.is_duration(kind):
                return operands.Literal("00:00:00.000003" if pa.types.is_time(kind) else rng.choice(_MOMENTS))
            return operands.Literal(_moment(value, kind, near, rng))
        if pa.types.is_boolean(kind):
            return operands.Literal(rng.choice([True, False, 0, 1]))
        if isinstance(value, str | bytes):
            return operands.Literal(
                value + type(value)(rng.choice(["", "a", "\0"]) if isinstance(value, str) else b"\0") if near else value
            )
        if not near:
            return operands.Literal(value)
        far = [2**70, -(2**70), 1e40, -1e40, Decimal("1e30"), 2**63, 2**64, float("inf"), float("-inf")]
        odd = [Decimal("0.1"), 0.1, 2.5, Decimal("1.005"), 5, 0, -0.0, float("nan"), 16777217, 2**53 + 1]
        if isinstance(value, int):
            odd += [value + 1, value - 1, value + 0.5, Decimal(value) + Decimal("0.25"), float(value)]
        elif isinstance(value, Decimal):
            odd += [value + Decimal("0.001"), float(value), int(value)]
        else:
            odd += [-value, Decimal(str(round(value, 3)))] if abs(value) < 1e15 else [-value]
        return operands.Literal(rng.choice(odd if rng.random() < 0.85 else far))

    # -- the outcome of every row --

    def _coded(self, name: str) -> tuple[np.ndarray, list]:
        """int [rows] places in a list of the column's distinct values; -0.0 and 0.0 are two."""
        if name not in self._codes:
            places: dict[str, int] = {}
            values: list = []
            codes = []
            for row in self.lake.plain:
                shown = repr(row[name])
                if shown not in places:
                    places[shown] = len(values)
                    values.append(row[name])
                codes.append(places[shown])
            self._codes[name] = np.array(codes, dtype=np.int64), values
        return self._codes[name]

    def _outcome(self, leaf: ast.Node, columns: tuple[str, ...]) -> np.ndarray:
        if not columns:
            return np.full(len(self.lake.plain), _CODE[row_matches(leaf, {})], dtype=np.int8)
        first, values = self._coded(columns[0])
        if len(columns) == 1:
            known = [_CODE[row_matches(leaf, {columns[0]: value})] for value in values]
            return np.array(known, dtype=np.int8)[first]
        second, others = self._coded(columns[1])
        pairs, at = np.unique(first * len(others) + second, return_inverse=True)
        known = [
            _CODE[row_matches(leaf, {columns[1]: others[pair % len(others)], columns[0]: values[pair // len(others)]})]
            for pair in pairs.tolist()
        ]
        return np.array(known, dtype=np.int8)[at]


def _moment(value: int, kind: pa.DataType, near: bool, rng: random.Random) -> pa.Scalar:
    if near:
        low, high = ends_of(kind)
        value = min(high, max(low, value + rng.choice([-1, 1])))
    scalar = pa.scalar(value, kind)
    if near and pa.types.is_timestamp(kind) and kind.unit != "ns" and abs(value) < 10**12:
        per = {"ms": 10**6, "us": 10**3}[kind.unit]
        return pa.scalar(value * per + rng.choice([-1, 0, 1]), pa.timestamp("ns", kind.tz))
    return scalar


# -- trees ------------------------------------------------------------------------------------------------------------


def random_tree(pool: Pool, rng: random.Random, depth: int = 3) -> Tree:
    drawn = rng.random()
    if depth == 0 or drawn < 0.35:
        return ("leaf", rng.randrange(len(pool.nodes)))
    if drawn < 0.5:
        return ("not", (random_tree(pool, rng, depth - 1),))
    return (rng.choice(["and", "or"]), tuple(random_tree(pool, rng, depth - 1) for _ in range(rng.choice([2, 2, 3]))))


def _folded(tree: Tree, leaf: Callable[[int], Any], combine: Callable[[str, list], Any]) -> Any:
    """`combine(kind, parts)` for each inner node, from the leaves up; None if `leaf` returns None for one of them."""
    if tree[0] == "leaf":
        return leaf(tree[1])
    parts = [_folded(child, leaf, combine) for child in tree[1]]
    return None if any(part is None for part in parts) else combine(tree[0], parts)


def outcomes_of(tree: Tree, pool: Pool) -> np.ndarray:
    """int8 [rows]."""

    def combine(kind: str, parts: list[np.ndarray]) -> np.ndarray:
        return _TRUE - parts[0] if kind == "not" else reduce(np.minimum if kind == "and" else np.maximum, parts)

    return _folded(tree, pool.outcomes.__getitem__, combine)


def node_of(tree: Tree, pool: Pool) -> ast.Node:
    def combine(kind: str, parts: list[ast.Node]) -> ast.Node:
        return ast.Not(parts[0]) if kind == "not" else (ast.And if kind == "and" else ast.Or)(tuple(parts))

    return _folded(tree, pool.nodes.__getitem__, combine)


def duck_of(tree: Tree, pool: Pool) -> str | None:
    """The tree over columns l0, l1, ... of a query whose columns are the pool's leaves."""

    def combine(kind: str, parts: list[str]) -> str:
        return f"(NOT {parts[0]})" if kind == "not" else "(" + f" {kind.upper()} ".join(parts) + ")"

    return _folded(tree, lambda leaf: None if pool.duck[leaf] is None else f"l{leaf}", combine)


def leaves_in(tree: Tree) -> set[int]:
    return _folded(tree, lambda leaf: {leaf}, lambda kind, parts: set().union(*parts))


FORMS = ("node", "text", "built", "tuples", "expression")


def where_of(tree: Tree, pool: Pool, form: str) -> object:
    """The predicate as it is passed to `scan`: its nodes, if the form cannot express it."""
    node = node_of(tree, pool)
    if form == "text":
        text = str(node)
        has_type = not any(f" AS {kind})" in text for kind in _WITHOUT_SQL)
        if not has_type or not all(_means_the_same_as_text(pool.nodes[leaf], pool.kinds) for leaf in leaves_in(tree)):
            return node
        return text if _is_accepted_by_duckdb(text, pool.kinds) else node
    found: object = None
    if form == "built":
        found = _folded(tree, pool.nodes.__getitem__, _with_operators)
    elif form == "tuples":
        found = _listed(tree, pool)
    elif form == "expression":
        found = _folded(tree, lambda leaf: _arrow_leaf(pool.nodes[leaf]), _with_operators)
    return node if found is None else found


def _is_accepted_by_duckdb(text: str, kinds: dict[str, pa.DataType]) -> bool:
    """Whether DuckDB compares these types at all, and can cast the literals."""
    fields: dict[str, object] = {}
    for name, kind in kinds.items():
        top, _, inner = name.partition(".")
        if inner:
            fields.setdefault(top, {})[inner] = kind  # type: ignore[index]
        else:
            fields[top] = kind
    types = {name: pa.struct(list(kind.items())) if isinstance(kind, dict) else kind for name, kind in fields.items()}
    try:
        parse(text, pa.schema(list(types.items())))
    except PredicateError as error:
        untested = "explicit cast|Conversion Error|Out of Range|does not support|No function matches|zero character"
        if not re.search(untested, str(error)):
            raise
        return False
    return True


def _means_the_same_as_text(node: ast.Node, kinds: dict[str, pa.DataType]) -> bool:
    """Whether the leaf means as text, which DuckDB's rules read, what it means as a node: numbers next to floats, or to
    a literal with an exponent, become floats, texts next to times of other units may not fit, and DuckDB 2.0 ignores
    the offset of a text next to a time without a zone."""
    if isinstance(node, ast.In):
        literals, operand = node.values, node.operand
    elif isinstance(node, ast.Comparison):
        literals = tuple(side for side in (node.left, node.right) if isinstance(side, operands.Literal))
        operand = next(side for side in (node.left, node.right) if not isinstance(side, operands.Literal))
    else:
        return True
    while isinstance(operand, operands.Cast):
        operand = operand.operand
    kind = kinds[operand.name]
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = [literal.value for literal in literals if literal.value is not None]
    if pa.types.is_floating(kind):
        exact = np.float64 if pa.types.is_float64(kind) else np.float32
        return all(isinstance(v, float | str) or Fraction(v) == _as_float(v, exact) for v in values)
    if pa.types.is_integer(kind) or pa.types.is_decimal128(kind):
        floats = [value for value in values if isinstance(value, float)]
        return not floats or (len(values) < 2 and "e" not in repr(floats[0]))
    if pa.types.is_temporal(kind):
        texts = [value for value in values if isinstance(value, str)]
        return (len(values) < 2 or not texts) and not any("+" in text for text in texts)
    return True


def _as_float(value: int | Decimal, kind: type[np.floating]) -> Fraction | None:
    with np.errstate(over="ignore"):
        rounded = float(kind(float(value))) if abs(value) < 2**1000 else np.inf
    return Fraction(rounded) if np.isfinite(rounded) else None


def _with_operators(kind: str, parts: list) -> Any:
    """A tree by Python's operators: of our nodes, or of pyarrow's expressions."""
    return ~parts[0] if kind == "not" else reduce(operator.and_ if kind == "and" else operator.or_, parts)


def _listed(tree: Tree, pool: Pool) -> list | None:
    """An OR of ANDs of leaves, as pyarrow writes it; None if the tree is none."""
    ors = tree[1] if tree[0] == "or" else (tree,)
    found = []
    for part in ors:
        ands = part[1] if part[0] == "and" else (part,)
        terms = [pool.tuples[leaf[1]] if leaf[0] == "leaf" else None for leaf in ands]
        if None in terms:
            return None
        found.append(terms)
    return found


_ARROW = {"=": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


def _arrow_leaf(node: ast.Node) -> pc.Expression | None:
    if isinstance(node, ast.IsNull) and isinstance(node.operand, operands.Column):
        return _field(node.operand).is_null()
    if not isinstance(node, ast.Comparison) or node.op not in _ARROW:
        return None
    sides = []
    for side in (node.left, node.right):
        if isinstance(side, operands.Column):
            sides.append(_field(side))
        elif isinstance(side, operands.Literal) and _is_arrows(side.value):
            sides.append(pc.scalar(side.value))
        else:
            return None
    return _ARROW[node.op](*sides)


def _is_arrows(value: object) -> bool:
    return abs(value) < 2**63 if type(value) is int else isinstance(value, bool | float | str | bytes)


def _field(column: operands.Column) -> pc.Expression:
    return pc.field(tuple(column.name.split(".")))


def _tuple_of(node: ast.Node) -> tuple | None:
    if (
        isinstance(node, ast.Comparison)
        and isinstance(node.left, operands.Column)
        and isinstance(node.right, operands.Literal)
    ):
        if node.op != "<=>" and node.right.value is not None:
            return (node.left.name, node.op, node.right.value)
    elif isinstance(node, ast.In) and isinstance(node.operand, operands.Column) and not node.negated and node.values:
        values = [literal.value for literal in node.values]
        return None if None in values else (node.operand.name, "in", values)
    return None
