"""Columns that are kept from the filters of Spark's Parquet reader, which would leave out row groups that match.

Spark hands comparisons on to its reader, which holds them against a file's statistics in the type that the *file* has.
Where that is narrower than the column's, the literal is cut to it: 3 us to 0 ms, so `t < 3 us` leaves out a file of
TIMESTAMP(ms) that is all 0; 123456789.01 as a DECIMAL(15, 2) wraps round in a file of DECIMAL(5, 2), or ends the query.
It also leaves out, by bounds that do not speak of NaN, and by dictionaries that tell -0.0 from 0.0, rows of floats that
match: NaN is greater than any number to Spark. Of such columns the reader is told nothing; Spark compares the rows that
are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from ..engine.predicates.widening import plain_type
from .column_tree import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..engine.state import FileSchema

Path = tuple[str, ...]


def shielded(frame: DataFrame, schema: pa.Schema, stored: Iterable[FileSchema], with_floats: bool) -> DataFrame:
    """The same rows of files of these schemas, in columns of which the reader is told nothing where it would err.
    `with_floats`: the filter that follows may hand it comparisons of floats that NaN or a zero satisfies."""
    for path in sorted(_paths(schema, stored, with_floats)):
        top, rest = path[0], path[1:]
        if top not in frame.columns:
            continue
        leaf = F.col(quoted(*path))
        seen = F.greatest(leaf, leaf)  # the value itself, and no column to Spark
        frame = frame.withColumn(top, F.col(quoted(top)).withField(quoted(*rest), seen) if rest else seen)
    return frame


def _paths(schema: pa.Schema, stored: Iterable[FileSchema], with_floats: bool) -> set[Path]:
    """The columns, and fields of structs, of a type that literals are cut to, where some file has another (of a file
    that was only told of nobody knows what it has); and, where they are asked for, those of floats."""
    found: set[Path] = set()
    for known in stored:
        for name in known.schema.names:
            if schema.get_field_index(name) >= 0:
                stored_as, own = known.schema.field(name).type, schema.field(name).type
                found.update(_leaves(plain_type(stored_as), plain_type(own), (name,), known.is_told, with_floats))
    return found


def _leaves(stored: pa.DataType, own: pa.DataType, path: Path, is_told: bool, with_floats: bool) -> Iterator[Path]:
    if pa.types.is_struct(stored) and pa.types.is_struct(own):
        for field in own:
            if stored.get_field_index(field.name) >= 0:
                inner = plain_type(stored.field(field.name).type)
                yield from _leaves(inner, plain_type(field.type), (*path, field.name), is_told, with_floats)
    elif pa.types.is_floating(own):
        if with_floats:
            yield path
    elif (is_told or stored != own) and (pa.types.is_decimal(own) or pa.types.is_timestamp(own)):
        yield path
