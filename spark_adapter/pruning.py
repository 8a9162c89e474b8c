"""Pruning in jobs of your own: `coarse` on the driver, `prune_partition` in the executors.

Nothing here needs Spark: an executor imports neither PySpark's session nor its JVM bridge, and any other framework that
sends pickles to workers may do the same.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..engine.open import open_table
from ..engine.predicates import Node, parse
from ..engine.scan.coarse_snapshot import FILTER_BYTES, Coarse, coarse_of
from ..engine.state import Instant
from ..errors import InvalidArgumentError, is_integer


def coarse(
    path: str | os.PathLike,
    columns: Sequence[str],
    *,
    index_path: str | os.PathLike | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    filter_bytes: int = FILTER_BYTES,
) -> Coarse:
    """The coarse part of a table's index for some columns: small, and quick to pickle, so that it can be broadcast, or
    travel in a closure.

        shared = spark.sparkContext.broadcast(sks.coarse("lake/flights", ["tail_num"]))

        def needles(paths):
            for path, row_groups in sks.prune_partition(paths, shared.value, "tail_num = 'N14228'"):
                yield from my_reader(path, row_groups)

        rows = spark.sparkContext.parallelize(paths, 8).mapPartitions(needles).collect()

    Args:
        path: the table's directory; executors must see it, and its index, under the same name.
        columns: the columns to prune by, besides the partition columns; by others nothing is pruned. Statistics and
            Bloom filters are included, secondary indexes are not: a column with only one of these gives a warning.
        index_path, version, storage_options: as in `scan`.
        filter_bytes: how much of filters' coarse levels is included. The rest is read from the index, by a small read
            for each value; where a file's own filter lies is included in any case.

    Raises:
        NotATableError: no index there, or no such version. SchemaError: a column that no index could be over.
    """
    if not is_integer(filter_bytes, 0):
        raise InvalidArgumentError(f"filter_bytes= is a number of bytes, 0 or more, not {filter_bytes!r}")
    with open_table(path, version=version, index_path=index_path, storage_options=storage_options) as table:
        result = coarse_of(table.handle, columns, filter_bytes)
        for name in _by_secondary_alone(table.handle.instant, columns):
            warnings.warn(
                f"column {name!r} has a secondary index and no Bloom filter: prune_partition() does not use the index, "
                f"and prunes by bounds alone; create_index({name!r}, kind='bloom'), or read by scan() or lookup()",
                stacklevel=2,
            )
        return result


def _by_secondary_alone(instant: Instant, columns: Sequence[str]) -> list[str]:
    """The columns that lead a secondary index and have no filter."""
    leading = {kind: {i.columns[0] for i in instant.indexes if i.kind == kind} for kind in ("secondary", "bloom")}
    return [name for name in columns if instant.columns.get(name) in leading["secondary"] - leading["bloom"]]


def predicate(where: object, coarse: Coarse | None = None) -> Node:
    """Any predicate that `scan` takes, a PySpark Column too, as what `prune_partition` takes in an executor: it
    pickles, and is read there without a parser.

    Args:
        coarse: needed for a Column, of its table: what Spark means by a comparison depends on the types of the columns,
            and on the settings of the active session.

    Raises:
        PredicateError: what cannot be read. InvalidArgumentError: a Column without `coarse`.
    """
    if not type(where).__module__.startswith("pyspark."):
        return parse(where, dialect="spark")
    if not isinstance(coarse, Coarse):
        raise InvalidArgumentError("what a Column means depends on the table: pass its coarse() as well")
    from pyspark.sql import SparkSession

    from .scanning import read_column

    column: Any = where
    return read_column(SparkSession.active(), column, coarse.schema)


def prune_partition(
    paths: Iterable[str | os.PathLike], coarse: Coarse, where: object
) -> Iterator[tuple[str, list[int] | None]]:
    """In an executor: the files among `paths` that may hold a match, in order, each with the numbers of its row groups
    that may (ascending), or None for all of them.

    Prunes by statistics and Bloom filters, not by secondary indexes (`scan` and `lookup` use those, in the driver). It
    reads no footer and no instant, only the fine indexes of the files that the coarse part leaves. Memory is bounded by
    a few thousand paths, whatever the length of `paths`.

    Args:
        paths: relative to the table, as `files()` has them; absolute; or URIs with their escapes, as Spark's
            `input_file_name()` gives them. A path without a scheme is not unescaped.
        coarse: made by `coarse`.
        where: SQL text, pyarrow tuples, a `col` predicate, a pyarrow expression, or what `predicate` made.

    Returns:
        (path as it was given, row groups or None). A path that the version of `coarse` does not have comes back whole,
        and so does a file that was overwritten since, where its row groups would matter. A path that it has and that
        does not come back holds no match in that version. Files of slices with logs come back whole or not at all.

    Where a fine index is damaged, or was cleaned meanwhile, its files come back whole, with a warning.

    Raises:
        PredicateError: `where` cannot be read, or names no column.
    """
    if not isinstance(coarse, Coarse):
        raise InvalidArgumentError(
            f"coarse is the result of coarse(), not a {type(coarse).__name__}; pass a broadcast's .value"
        )
    return coarse.prune(paths, parse(where, dialect="spark") if isinstance(where, str) else where)
