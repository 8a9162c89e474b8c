"""Random predicates for the mass test, and two oracles that know nothing of the engine's code.

Pool           a few dozen leaves over a lake: each as a node, as DuckDB's SQL where the two mean the same, and as the
               outcome of every row, worked out by `row_matches` once for every distinct value
random_tree    AND, OR and NOT over a pool's leaves
outcomes_of    a tree's outcome in every row: 0 false, 1 null, 2 true, so that AND is the least and OR the greatest
forms_of       the same predicate as a tree of nodes, as SQL text, built by & | ~, and as tuples where they reach
"""

from __future__ import annotations

import operator
import random
from decimal import Decimal
from fractions import Fraction
from functools import reduce

import numpy as np
import pyarrow as pa
from skipstone.engine.predicates import ast
from soundness_lakes import PARTITION_TEXTS, RandomLake, ends_of
from strategies_predicates import _TIMES_IN_TEXT, leaf_columns, row_matches

Tree = tuple  # ("leaf", number) | ("and" | "or", (tree, ...)) | ("not", (tree,))
_FALSE, _NULL, _TRUE = 0, 1, 2
_CODE = {False: _FALSE, None: _NULL, True: _TRUE}
_OPS = ["=", "=", "<=>", "!=", "<", "<=", ">", ">="]
_MOMENTS = [text for text in _TIMES_IN_TEXT if text[2] != ":"]
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
_WITHOUT_SQL = ("uint64", "large_string")  # types to cast to that Spark's SQL has no name of


class Pool:
    """Leaves over one lake. All lists are by leaf number.

    nodes        the leaf as the engine gets it
    outcomes     int8 [rows]
    duck         DuckDB's SQL, or None where DuckDB means something else, or cannot say it
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
        plain, given = ast.Column(name), ast.Column(name)
        if rng.random() < 0.15 and value_kind in _WIDER:
            given = ast.Cast(given, rng.choice(_WIDER[value_kind]))
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
        return ast.IsNaN

    def _flag(self, name: str, kind: pa.DataType):
        return lambda operand: ast.Comparison("=", operand, ast.Literal(True))

    def _like(self, name: str, kind: pa.DataType):
        pattern = "".join(self.rng.choices(["%", "_", "a", "ab", "\\%", "\\_", "\\\\", "é", "x", "'"], k=3))
        if self.rng.random() < 0.6:
            text = self._text(name)
            cut = text[: self.rng.randint(0, len(text))]
            pattern = "".join("\\" + c if c in "%_\\" else c for c in cut) + self.rng.choice(["%", "%", "%", "", "_"])
        return lambda operand: ast.Like(operand, pattern)

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
        node = ast.Comparison(self.rng.choice(_OPS), ast.Column(name), ast.Column(other))
        return node, node, (name, other)

    def _literal(self, name: str, kind: pa.DataType, nulls: float = 0.04) -> ast.Literal:
        rng = self.rng
        if rng.random() < nulls:
            return ast.Literal(None)
        value = rng.choice(self.palettes[name])
        near = rng.random() < 0.4
        if pa.types.is_temporal(kind):
            if rng.random() < 0.06 and not pa.types.is_duration(kind):
                return ast.Literal("00:00:00.000003" if pa.types.is_time(kind) else rng.choice(_MOMENTS))
            return ast.Literal(_moment(value, kind, near, rng))
        if pa.types.is_boolean(kind):
            return ast.Literal(rng.choice([True, False, 0, 1]))
        if isinstance(value, str | bytes):
            return ast.Literal(
                value + type(value)(rng.choice(["", "a", "\0"]) if isinstance(value, str) else b"\0") if near else value
            )
        if not near:
            return ast.Literal(value)
        far = [2**70, -(2**70), 1e40, -1e40, Decimal("1e30"), 2**63, 2**64, float("inf"), float("-inf")]
        odd = [Decimal("0.1"), 0.1, 2.5, Decimal("1.005"), 5, 0, -0.0, float("nan"), 16777217, 2**53 + 1]
        if isinstance(value, int):
            odd += [value + 1, value - 1, value + 0.5, Decimal(value) + Decimal("0.25"), float(value)]
        elif isinstance(value, Decimal):
            odd += [value + Decimal("0.001"), float(value), int(value)]
        else:
            odd += [-value, Decimal(str(round(value, 3)))] if abs(value) < 1e15 else [-value]
        return ast.Literal(rng.choice(odd if rng.random() < 0.85 else far))

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


def outcomes_of(tree: Tree, pool: Pool) -> np.ndarray:
    """int8 [rows]."""
    if tree[0] == "leaf":
        return pool.outcomes[tree[1]]
    parts = [outcomes_of(child, pool) for child in tree[1]]
    if tree[0] == "not":
        return _TRUE - parts[0]
    return reduce(np.minimum if tree[0] == "and" else np.maximum, parts)


def node_of(tree: Tree, pool: Pool) -> ast.Node:
    if tree[0] == "leaf":
        return pool.nodes[tree[1]]
    children = tuple(node_of(child, pool) for child in tree[1])
    return ast.Not(children[0]) if tree[0] == "not" else (ast.And if tree[0] == "and" else ast.Or)(children)


def duck_of(tree: Tree, pool: Pool) -> str | None:
    """The tree over columns l0, l1, ... of a query whose columns are the pool's leaves."""
    if tree[0] == "leaf":
        return None if pool.duck[tree[1]] is None else f"l{tree[1]}"
    parts = [duck_of(child, pool) for child in tree[1]]
    if None in parts:
        return None
    return f"(NOT {parts[0]})" if tree[0] == "not" else "(" + f" {tree[0].upper()} ".join(parts) + ")"


def leaves_in(tree: Tree) -> set[int]:
    return {tree[1]} if tree[0] == "leaf" else set().union(*map(leaves_in, tree[1]))


def forms_of(tree: Tree, pool: Pool) -> dict[str, object]:
    """What `scan` may be given for this predicate."""
    node = node_of(tree, pool)
    forms = {"node": node, "built": _built(tree, pool)}
    text = str(node)
    if not any(f" AS {kind})" in text for kind in _WITHOUT_SQL):
        forms["text"] = text
    listed = _listed(tree, pool)
    if listed is not None:
        forms["tuples"] = listed
    return forms


def _built(tree: Tree, pool: Pool) -> ast.Node:
    if tree[0] == "leaf":
        return pool.nodes[tree[1]]
    parts = [_built(child, pool) for child in tree[1]]
    return ~parts[0] if tree[0] == "not" else reduce(operator.and_ if tree[0] == "and" else operator.or_, parts)


def _listed(tree: Tree, pool: Pool) -> list | None:
    """An OR of ANDs of leaves, as pyarrow writes it; None where the tree is none."""
    ors = tree[1] if tree[0] == "or" else (tree,)
    found = []
    for part in ors:
        ands = part[1] if part[0] == "and" else (part,)
        terms = [pool.tuples[leaf[1]] if leaf[0] == "leaf" else None for leaf in ands]
        if None in terms:
            return None
        found.append(terms)
    return found


def _tuple_of(node: ast.Node) -> tuple | None:
    if isinstance(node, ast.Comparison) and isinstance(node.left, ast.Column) and isinstance(node.right, ast.Literal):
        if node.op != "<=>" and node.right.value is not None:
            return (node.left.name, node.op, node.right.value)
    elif isinstance(node, ast.In) and isinstance(node.operand, ast.Column) and not node.negated and node.values:
        values = [literal.value for literal in node.values]
        return None if None in values else (node.operand.name, "in", values)
    return None


# -- DuckDB -----------------------------------------------------------------------------------------------------------


def duck_table(lake: RandomLake) -> pa.Table:
    """The lake's rows as DuckDB takes them, with `unit`: structs as their leaves; what it has no type of, as counts."""
    columns: dict[str, pa.Array] = {"unit": pa.array(lake.unit_of)}
    for name, kind in leaf_columns(lake.table.schema).items():
        top, _, inner = name.partition(".")
        array = lake.rows.column(top).combine_chunks()
        array = pa.compute.struct_field(array, inner) if inner else array
        if pa.types.is_float16(kind):
            array = array.cast(pa.float32())
        elif _is_raw(kind):
            array = array.view(pa.int64())
        elif pa.types.is_timestamp(kind):
            array = array.cast(pa.timestamp(kind.unit))  # zones are an extension of DuckDB, which we do not load
        elif pa.types.is_decimal256(kind):
            continue
        columns[name] = array
    return pa.table(columns)


def _is_raw(kind: pa.DataType) -> bool:
    return pa.types.is_duration(kind) or (pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns")


def duck_leaf(node: ast.Node, kinds: dict[str, pa.DataType]) -> str | None:
    """A leaf in DuckDB's SQL, both sides brought to a type that holds them exactly; None where there is none."""
    if isinstance(node, ast.Constant):
        return {True: "TRUE", False: "FALSE", None: "CAST(NULL AS BOOLEAN)"}[node.value]
    if isinstance(node, ast.Comparison):
        sides = (node.left, node.right)
        names = [side.name for side in map(_uncast, sides) if isinstance(side, ast.Column)]
        literals = [side for side in sides if isinstance(side, ast.Literal)]
        common = (
            _common(kinds[names[0]], literals)
            if len({kinds[name] for name in names}) == 1
            else _integers([kinds[name] for name in names])
        )
        if common is None:
            return None
        left, right = (_duck_operand(side, kinds, common) for side in sides)
        return f"({left} {'IS NOT DISTINCT FROM' if node.op == '<=>' else node.op} {right})"
    operand = _uncast(node.operand)
    kind = kinds[operand.name]
    quoted = _quoted(operand.name)
    if isinstance(node, ast.IsNull):
        return None if pa.types.is_decimal256(kind) else f"({quoted} IS NULL)"
    if isinstance(node, ast.IsNaN):
        return f"coalesce(isnan(CAST({quoted} AS DOUBLE)), FALSE)"
    if isinstance(node, ast.In):
        common = _common(kind, list(node.values))
        if common is None or not node.values:
            return None
        listed = ", ".join(_duck_operand(value, kinds, common) for value in node.values)
        return f"({_duck_operand(operand, kinds, common)} {'NOT IN' if node.negated else 'IN'} ({listed}))"
    if pa.types.is_binary(kind) or isinstance(node.operand, ast.Cast):
        return None  # DuckDB has no patterns over bytes
    if isinstance(node, ast.StartsWith):
        return f"starts_with({quoted}, {_duck_text(node.prefix)})"
    return f"({quoted} LIKE {_duck_text(node.pattern)} ESCAPE '\\')"


def _uncast(operand: ast.Operand) -> ast.Operand:
    return operand.operand if isinstance(operand, ast.Cast) else operand


def _quoted(name: str) -> str:
    return f'"{name}"'


def _integers(kinds: list[pa.DataType]) -> str | None:
    return "HUGEINT" if all(pa.types.is_integer(kind) for kind in kinds) else None


def _common(kind: pa.DataType, literals: list[ast.Literal]) -> str | None:
    """The DuckDB type in which a column and literals compare exactly; "ns" for instants and times."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = [literal.value for literal in literals if literal.value is not None]
    if pa.types.is_temporal(kind):
        return "ns"
    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "VARCHAR"
    if pa.types.is_floating(kind):
        is_exact = all(not isinstance(value, int) or _is_double(value) for value in values)
        return "DOUBLE" if is_exact else None
    if pa.types.is_decimal256(kind) or any(isinstance(value, float) for value in values if pa.types.is_decimal(kind)):
        return None
    if pa.types.is_integer(kind) and all(isinstance(value, int) and abs(value) < 2**120 for value in values):
        return "HUGEINT"
    precision, scale = (38, 8) if pa.types.is_integer(kind) else (38, kind.scale)
    fits = all(_fits(value, precision, scale) for value in values)
    return f"DECIMAL({precision},{scale})" if fits else None


def _is_double(value: int) -> bool:
    return abs(value) < 2**1000 and int(float(value)) == value


def _fits(value: object, precision: int, scale: int) -> bool:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return False
    unscaled = Fraction(value) * 10**scale
    return unscaled.denominator == 1 and abs(unscaled) < 10**precision


def _duck_operand(operand: ast.Operand, kinds: dict[str, pa.DataType], common: str) -> str:
    operand = _uncast(operand)
    if isinstance(operand, ast.Column):
        return _duck_column(operand.name, kinds[operand.name], common)
    value = operand.value
    if value is None:
        return "NULL"
    if common == "ns":
        return f"CAST('{_TIMES_IN_TEXT[value] if isinstance(value, str) else value.ns}' AS HUGEINT)"
    if common == "BOOLEAN":
        return str(bool(value)).upper()
    if common == "BLOB":
        data = value.encode() if isinstance(value, str) else value
        return "'" + "".join(f"\\x{byte:02X}" for byte in data) + "'::BLOB"
    if common == "VARCHAR":
        return _duck_text(value)
    if common == "DOUBLE":
        return f"CAST('{float(value)!r}' AS DOUBLE)"
    shown = format(Decimal(value), "f") if not isinstance(value, int) else str(value)
    return f"CAST('{shown}' AS {common})"


def _duck_column(name: str, kind: pa.DataType, common: str) -> str:
    quoted = _quoted(name)
    if common != "ns":
        return quoted if common in ("BOOLEAN", "BLOB", "VARCHAR") else f"CAST({quoted} AS {common})"
    if _is_raw(kind):
        return f"CAST({quoted} AS HUGEINT)" + (" * 1000" if getattr(kind, "unit", "") == "us" else "")
    if pa.types.is_date(kind):
        quoted = f"CAST({quoted} AS TIMESTAMP)"
    return f"CAST(epoch_us({quoted}) AS HUGEINT) * 1000"


def _duck_text(text: str) -> str:
    parts = ["'" + part.replace("'", "''") + "'" for part in text.split("\0")]
    return "(" + " || chr(0) || ".join(parts) + ")"
