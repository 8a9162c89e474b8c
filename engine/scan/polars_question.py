"""What polars is asked: columns, and a condition that follows from the predicate, so that it leaves out rows early."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..predicates import And, Node, Not, Or
from ..predicates.bound import Leaf
from .file_reader import FileReader
from .polars_files import PolarsScan

if TYPE_CHECKING:
    import polars as pl


def frame_of(scan: PolarsScan, data: io.BytesIO) -> pa.Table | None:
    """The rows that polars gives of `scan.fetched()`, by the files' own names and, where they are needed, with their
    numbers; None where it refuses a file."""
    import polars as pl

    try:
        return _asked(scan, data).collect().to_arrow()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException):
        return None
    except (ArithmeticError, ValueError, TypeError):  # a literal that Python's own types cannot hold
        return None


def _asked(scan: PolarsScan, data: io.BytesIO) -> pl.LazyFrame:
    import polars as pl

    file = scan.first
    names = file.reader.file_names(file.reader.stored(file.names))
    number = _number_name(file.reader.file.arrow_schema.names)
    rows = pl.scan_parquet(
        data,
        use_statistics=False,
        hive_partitioning=False,
        row_index_name=number if file.has_numbers else None,
    )
    is_named = file.reader.task.rows is not None
    wanted = None
    if is_named or not file.is_sure:
        context = file.reader.context
        of_rows = And((context.bound, context.keys)) if is_named else context.bound
        wanted = _implied(of_rows, file.reader, rows.collect_schema())
    if wanted is None and is_named:
        numbers = np.flatnonzero(scan.is_kept).astype(np.uint32)
        wanted = pl.col(number).is_in(pl.Series(numbers).implode())
    rows = rows if wanted is None else rows.filter(wanted)
    return rows.select([*names, number] if file.has_numbers else names)


def _number_name(names: Sequence[str]) -> str:
    """A name that none of the columns has."""
    name = "row"
    while name in names:
        name += "_"
    return name


# -- what polars may leave out -----------------------------------------------------------------------------------------


def _implied(node: Node, reader: FileReader, schema: Any) -> pl.Expr | None:
    """A condition that every matching row fulfils, in columns of the file; None where there is none to be said."""
    import polars as pl

    if isinstance(node, Leaf):
        return _implied_by_leaf(node, reader, schema)
    if isinstance(node, Not) and isinstance(node.child, Leaf) and node.child.op == "is_null":
        column = _column(node.child, reader)
        return None if column is None else pl.col(column).is_not_null()
    if isinstance(node, And | Or):
        parts = [_implied(child, reader, schema) for child in node.children]
        known = [part for part in parts if part is not None]
        if isinstance(node, And):
            return pl.all_horizontal(known) if known else None
        return pl.any_horizontal(known) if known and len(known) == len(parts) else None
    return None


def _column(leaf: Leaf, reader: FileReader) -> str | None:
    """The file's name of a leaf's column, where the file has it."""
    stored = reader.stored(leaf.ref.path) if len(leaf.ref.path) == 1 else []
    return reader.file_names(stored)[0] if stored else None


_COMPARISONS = {"=": "eq", "<=>": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def _implied_by_leaf(leaf: Leaf, reader: FileReader, schema: Any) -> pl.Expr | None:
    import polars as pl

    name = _column(leaf, reader)
    if name is None:
        return None
    column, kind = pl.col(name), schema[name]
    if leaf.op == "is_null":
        return column.is_null()
    if not (leaf.op in _COMPARISONS or leaf.op in ("in", "not in")):
        return None
    values = pl.from_arrow(leaf.values)
    assert isinstance(values, pl.Series)
    if values.dtype.is_integer() and kind.is_integer():
        values = values.cast(kind, strict=True)  # a narrower file: a value beyond it is an error, and pyarrow's to read
    if values.dtype != kind:  # polars would compare in a third type
        return None
    if leaf.op == "in":
        implied = column.is_in(values.implode())
    elif leaf.op == "not in":
        implied = ~column.is_in(values.implode())
    else:
        implied = getattr(column, _COMPARISONS[leaf.op])(pl.lit(values.item(), dtype=kind))
    # What is said of NaN and of the zeros is left to our own evaluator.
    return implied | column.is_nan() | (column == 0) if kind.is_float() else implied
