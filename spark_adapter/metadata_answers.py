"""Aggregates of whole tables that metadata decides: `SELECT count(*), min(k), max(k) FROM flights` reads no row.

The count is of rows that footers counted, where nothing was deleted since. Extremes are those of `Plan.min` and
`Plan.max`, of types that Spark and the table order alike and that bounds are exact for: neither floats nor strings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..base.arrays import to_numpy
from ..engine.open import open_pair
from ..engine.scan.extremes import extreme
from .catalyst_tree import children_of, items_of
from .to_columns import sql_literal
from .where_text import where_node, where_of
from .wire_types import wire_schema

if TYPE_CHECKING:
    from ..engine.scan.planning import PlannedScan
    from .options import Request

_EXTREMES = {"Min": "min", "Max": "max"}
Asked = tuple[str, str]  # "count", or "min" or "max" of a column


def asked_of(aggregate: Any, relation: Any) -> list[Asked] | None:
    """What an Aggregate of Catalyst asks of the relation below it; None where it is more than counts and extremes, or
    anything in groups."""
    if aggregate.groupingExpressions().size():
        return None
    names = functools.cache(lambda: {each.exprId().toString(): each.name() for each in items_of(relation.output())})
    asked = [_asked(each, names) for each in items_of(aggregate.aggregateExpressions())]
    return [each for each in asked if each is not None] if None not in asked else None


def _asked(named: Any, names: Callable[[], dict[str, str]]) -> Asked | None:
    """`names`: of the relation's columns, by their ids: calls to the JVM for each, which a count does without."""
    if named.getClass().getSimpleName() != "Alias" or named.child().getClass().getSimpleName() != "AggregateExpression":
        return None
    call = named.child()
    function = call.aggregateFunction()
    arguments = children_of(function)
    if call.isDistinct() or call.filter().isDefined() or len(arguments) != 1:
        return None
    kind, argument = function.getClass().getSimpleName(), arguments[0].getClass().getSimpleName()
    if kind == "Count" and argument == "Literal" and arguments[0].value() is not None:
        return "count", ""
    if kind in _EXTREMES and argument == "AttributeReference":
        name = names().get(arguments[0].exprId().toString())
        return None if name is None else (_EXTREMES[kind], name)
    return None


def answers(request: Request, asked: Sequence[Asked]) -> list[str] | None:
    """The values, as SQL; None where metadata does not decide one of them."""
    if request.first_rows is not None:
        return None
    place = request.path, request.version, request.log_position, request.index_path, request.storage_options
    with open_pair(*place) as table:
        wire = wire_schema(table.schema, list(dict.fromkeys(name for _, name in asked if name)))
        if not all(_is_ordered_alike(table.schema.field(field.name).type, field.type) for field in wire):
            return None
        planning = table.scan(where_node(where_of(request), table.schema), mode=request.mode).planning
        if not _is_counted(planning):
            return None
        return [_answer(planning, which, wire, name) for which, name in asked]


def _is_ordered_alike(stored: pa.DataType, wire: pa.DataType) -> bool:
    is_number = pa.types.is_signed_integer(stored) or pa.types.is_decimal(stored)
    return stored == wire and (is_number or pa.types.is_date32(stored) or pa.types.is_timestamp(stored))


def _is_counted(planning: PlannedScan) -> bool:
    """Whether every row of what is left matches, and their number is known."""
    return bool((planning.pruned.only_true & planning.pruned.units.exact).all())


def _answer(planning: PlannedScan, which: str, wire: pa.Schema, name: str) -> str:
    if which == "count":
        units = planning.pruned.units
        row_counts = np.where(units.has_rows, to_numpy(units.files.column("row_count")), 0)
        return sql_literal(pa.scalar(int(row_counts.sum()), pa.int64()), pa.int64())
    kind = wire.field(name).type
    return sql_literal(pa.scalar(extreme(planning, name, which), kind), kind)
