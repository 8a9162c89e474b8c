"""Chooses the columns of a new file that get a dictionary.

Parquet's writers begin a dictionary for every column, and stop once it has 1 MB. A column of random keys is hashed
unnecessarily then, and the file contains some of its values twice. So a sample decides: runs of neighbouring rows,
spread over the row group. Sorted values repeat within a run, and values of a small domain from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine
from ..parquet.leaves import plain_type

_ROWS_MIN = 1 << 14  # the dictionary of fewer rows is built quickly
_RUNS, _RUN_ROWS = 32, 64
# With a domain of so many values per row, 40% of all rows are distinct: a dictionary and its codes are hardly shorter.
_DOMAIN_A_ROW = 0.45


def dictionary_columns(rows: pa.Table) -> bool | list[str]:
    """Return `use_dictionary` of pyarrow's writer, for a file that begins with these rows: True for all columns, or the
    Parquet paths of those that a dictionary may make shorter."""
    if rows.num_rows < _ROWS_MIN:
        return True
    places = np.arange(_RUNS) + np.random.default_rng(0).random(_RUNS)  # random, because values may be periodic
    starts = (places * (rows.num_rows - _RUN_ROWS) / _RUNS).astype(np.int64)
    sample = pa.concat_tables([rows.slice(start, _RUN_ROWS) for start in starts.tolist()])
    return [
        path
        for field, column in zip(rows.schema, sample.columns, strict=True)
        if not _is_mostly_distinct(column, rows.num_rows)
        for path in parquet_paths(field.name, field.type)
    ]


def _is_mostly_distinct(column: pa.ChunkedArray, row_count: int) -> bool:
    """Return whether a sample of a column repeats less than one of random values of `_DOMAIN_A_ROW` would."""
    kind = plain_type(column.type)
    if pa.types.is_nested(kind) or pa.types.is_dictionary(column.type):
        return False
    values, null_count = combine(column), column.null_count
    valid_count = len(values) - null_count
    if valid_count < _RUNS * _RUN_ROWS // 2:
        return False
    if isinstance(values, pa.ExtensionArray):
        values, kind = values.storage, values.type.storage_type
    try:
        distinct = len(pc.unique(values.cast(kind))) - (null_count > 0)
    except pa.ArrowNotImplementedError:
        return False
    draws = valid_count / (_DOMAIN_A_ROW * row_count)  # how often the sample contains each value of such a domain
    return distinct > valid_count * -math.expm1(-draws) / draws


def parquet_paths(name: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the dotted paths that Parquet gives the leaves of a column."""
    if isinstance(kind, pa.BaseExtensionType):
        yield from parquet_paths(name, kind.storage_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from parquet_paths(f"{name}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from parquet_paths(f"{name}.key_value.key", kind.key_type)
        yield from parquet_paths(f"{name}.key_value.value", kind.item_type)
    elif pa.types.is_nested(kind):
        yield from parquet_paths(f"{name}.list.element", kind.value_type)
    else:
        yield name
