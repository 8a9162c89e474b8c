"""Scans of entries whose values lie between bounds: blocks whose summaries say that none does are not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidArgumentError
from .batches import column_positions
from .index import BlockIndex
from .summaries import summarise


@dataclass(frozen=True)
class Limit:
    """What values of one column are wanted: from `lower` to `upper`, both inclusive, scalars of its type; None is no
    bound."""

    position: int
    field: pa.Field
    lower: pa.Scalar | None
    upper: pa.Scalar | None

    def blocks(self, index: BlockIndex, blocks: Sequence[int]) -> Sequence[int]:
        """Those of some blocks in which a value may be wanted, by the column's summary."""
        if not len(blocks):
            return blocks
        lower, upper = (None if bound is None else _as_summarised(bound) for bound in (self.lower, self.upper))
        within = range(blocks[0], blocks[-1] + 1)
        some = index.blocks_within(self.field.name, lower, upper, within)
        return some if isinstance(blocks, range) else sorted(set(blocks).intersection(some))

    def mask(self, column: pa.Array) -> pa.BooleanArray:
        """Which values are wanted; null or False where one is null."""
        mask = pc.is_valid(column)
        lower, upper = self.lower, self.upper
        if pa.types.is_float16(column.type):  # which Arrow does not compare
            column = column.cast(pa.float32())
            lower, upper = (None if bound is None else bound.cast(pa.float32()) for bound in (lower, upper))
        if lower is not None:
            mask = pc.and_(mask, pc.greater_equal(column, lower))
        return mask if upper is None else pc.and_(mask, pc.less_equal(column, upper))


def limits_of(schema: pa.Schema, between: Mapping[str, tuple[object, object]]) -> list[Limit]:
    """The wanted values of some columns. Raises SchemaError for a column that is not there, InvalidArgumentError for
    bounds that are no two values of its type."""
    found = []
    for position, (name, bounds) in zip(column_positions(schema, list(between)), between.items(), strict=True):
        field = schema.field(position)
        try:
            lower, upper = bounds
            sides = [None if bound is None else pa.scalar(bound, field.type) for bound in (lower, upper)]
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"column {name!r} is between two values of type {field.type}, or None for no bound ({error})"
            ) from None
        found.append(Limit(position, field, *sides))
    return found


def blocks_between(index: BlockIndex, limits: Sequence[Limit], blocks: range) -> Sequence[int]:
    """Those of some blocks, ascending, that may hold what all limits want."""
    kept: Sequence[int] = blocks
    for limit in limits:
        if limit.field.name in index.summarised:
            kept = limit.blocks(index, kept)
    return kept


def rows_between(batches: Iterator[pa.RecordBatch], limits: Mapping[int, Limit], keep: int) -> Iterator[pa.RecordBatch]:
    """The rows that all limits want, by the column of the batches in which their values are; the first `keep` columns
    of them."""
    for batch in batches:
        for place, limit in limits.items():
            batch = batch.filter(limit.mask(batch.column(place)))
        if batch.num_rows:
            yield batch.select(range(keep))


def _as_summarised(bound: pa.Scalar) -> int | bytes:
    return summarise(pa.array([bound], bound.type), None).lower
