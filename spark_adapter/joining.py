"""`join`: of two DataFrames, where the few rows of one decide which files the other need read.

    facts.join(dim, "tailnum")    dim is computed, once, as far as it is small: its keys come to the driver
    facts where tailnum IN (...)  `optimized` gives that to the scans below, also under filters, projections and views
    that, joined with dim         by Spark, as ever

Where `dim` is not small, or its keys say nothing about the rows of `facts` that are in the result, Spark joins alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from ..engine.progress import Progress, progress_function
from ..engine.scan.lookup import FEW_KEYS
from ..errors import InvalidArgumentError, SchemaError
from .column_tree import quoted
from .jobs import described, watched
from .plan_rewriting import rewritten, with_ids_of
from .spark_versions import check_spark, collected
from .wire_types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SUFFIXES: dict[type[DataType], str] = {ByteType: "Y", ShortType: "S", IntegerType: "", LongType: "L"}
# Of these a row of `facts` is in no result unless its key is among those of `dim`.
_PRUNED = {"inner", "semi", "leftsemi", "right", "rightouter"}


@described("join")
def join(
    facts: DataFrame,
    dim: DataFrame,
    on: str | Sequence[str],
    how: str = "inner",
    *,
    max_rows: int = 10_000,
    progress: Progress | bool | None = None,
) -> DataFrame:
    """`facts.join(dim, on, how)`, where the scans of ours in `facts` skip what no key of `dim` is in.

        sks.join(spark.table("flights"), planes.where("year = 1956"), "tailnum")

    `dim` is computed now, up to `max_rows` rows, and once: the join has those rows. Up to 1,024 keys of a column are
    given to the scans as IN, more as a range. Where `dim` has more rows, where the scans could not use the keys, and of
    left, full and anti joins, the result is Spark's own join. For very many keys see `lookup`.

    Args:
        facts: a DataFrame with relations as `optimized` takes them.
        on: columns of both, by name.
        how: as Spark's.
        max_rows: of `dim`, that come to the driver.
        progress: of the computation of `dim`, called as f(step, done, total), or True for a bar on stderr.

    Over Spark Connect, where no plan can be seen, it is Spark's own join, with a warning.

    Raises InvalidArgumentError where `on` names no columns. Else what Spark's own join raises.
    """
    check_spark("4.0", "join()")
    names = [on] if isinstance(on, str) else list(on) if isinstance(on, Sequence) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"on= names columns of both sides, not {on!r}; for a condition use Spark's join")
    if how.lower().replace("_", "") not in _PRUNED:
        return facts.join(dim, names, how)
    if not hasattr(facts, "_jdf"):
        warnings.warn(
            "over Spark Connect a join skips nothing by keys: give them to the load, sks.scan(spark, path, "
            "where=F.col(name).isin(keys)), or use sks.lookup",
            stacklevel=2,
        )
        return facts.join(dim, names, how)
    rows = _few_rows(dim, max_rows, progress_function(progress))
    if rows is None:
        return facts.join(dim, names, how)
    conditions = [_condition(facts, dim, name, rows) for name in names]
    filtered = facts.where(" AND ".join(filter(None, conditions)) or "true")
    pruned = rewritten(filtered)
    small = facts.sparkSession.createDataFrame(rows, dim.schema)
    left = facts if pruned is filtered else with_ids_of(facts, pruned)
    return left.join(with_ids_of(dim, small), names, how)


def _few_rows(frame: DataFrame, count: int, progress: Progress | None) -> pa.Table | None:
    """The rows of a DataFrame; None where they are more, or of a type that Spark does not take back as it was."""
    try:
        arrow_schema(frame.schema)
    except SchemaError:
        return None
    rows = watched(frame.sparkSession, partial(collected, frame.limit(count + 1)), "keys", progress)
    return rows if rows.num_rows <= count else None


def _condition(facts: DataFrame, dim: DataFrame, name: str, rows: pa.Table) -> str | None:
    """What a row of `facts` with one of the keys fulfils, as SQL; None where the keys are not compared as they are."""
    kinds = [[field.dataType for field in frame.schema.fields if field.name == name] for frame in (facts, dim)]
    if [len(each) for each in kinds] != [1, 1] or kinds[0] != kinds[1]:
        return None
    keys = rows.column(name).combine_chunks().drop_null().unique()
    if not len(keys):
        return "false"
    ends = len(keys) > FEW_KEYS
    values = pa.array(pc.min_max(keys).values(), keys.type) if ends else keys
    literals = _literals(kinds[0][0], values)
    if literals is None:
        return None
    column = quoted(name)
    return f"{column} BETWEEN {literals[0]} AND {literals[1]}" if ends else f"{column} IN ({', '.join(literals)})"


def _literals(kind: DataType, values: pa.Array) -> list[str] | None:
    """Values as SQL that means them in any session; None for types whose values are compared in more than one way."""
    if type(kind) in _SUFFIXES:
        return [f"{value}{_SUFFIXES[type(kind)]}" for value in values.to_pylist()]
    if type(kind) is StringType:
        return [f"CAST(X'{value.encode().hex()}' AS STRING)" for value in values.to_pylist()]
    if isinstance(kind, DateType):
        return [f"DATE_ADD(DATE'1970-01-01', {days})" for days in values.cast(pa.int32()).to_pylist()]
    if isinstance(kind, TimestampType):
        instants = values.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        return [f"TIMESTAMP_MICROS({micros}L)" for micros in instants.to_pylist()]
    if isinstance(kind, TimestampNTZType):
        return [f"TIMESTAMP_NTZ'{value.isoformat(' ')}'" for value in values.to_pylist()]
    if isinstance(kind, DecimalType):
        return [f"CAST('{value:f}' AS {kind.simpleString()})" for value in values.to_pylist()]
    return None
