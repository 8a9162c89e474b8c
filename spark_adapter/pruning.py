"""Pruning in jobs of your own: `coarse` on the driver, `prune_partition` in the executors.

Nothing here needs Spark: an executor imports neither PySpark's session nor its JVM bridge, and any other framework that
sends pickles to workers may do the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..engine.open import open_table
from ..engine.predicates import Node, parse
from ..engine.scan.coarse_snapshot import FILTER_BYTES, Coarse, coarse_of
from ..errors import InvalidArgumentError, PredicateError, is_integer
from .columns import SparkPredicate, text_tree, where_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BYTES_MAX = 256 << 20  # of a coarse part, which each executor keeps in memory


def coarse(
    path: str | os.PathLike[str],
    columns: Sequence[str],
    *,
    index_path: str | os.PathLike[str] | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    where: object = None,
    filter_bytes: int = FILTER_BYTES,
    bytes_max: int = BYTES_MAX,
) -> Coarse:
    """Return the coarse part of a table's index for some columns. It is small and quick to pickle, for a broadcast or a
    closure.

        shared = spark.sparkContext.broadcast(sks.coarse("lake/flights", ["tail_num"]))

        def needles(paths):
            for path, row_groups in sks.prune_partition(paths, shared.value, "tail_num = 'N14228'"):
                yield from my_reader(path, row_groups)

        rows = spark.sparkContext.parallelize(paths, 8).mapPartitions(needles).collect()

    Args:
        path: the table's directory; executors must see it, and its index, under the same name.
        columns: the columns to prune by, in addition to the partition columns. Statistics and Bloom filters are
            included, secondary indexes are not.
        index_path, version, storage_options: as in `scan`.
        where: the predicate of later calls, as for `prune_partition`: then only the rows of its values are included of
            Bloom filters. Other predicates still work; they read what is missing from the index.
        filter_bytes: how much of filters' coarse levels is included. The rest is read from the index, by a small read
            per value. The places of the files' own filters are always included.
        bytes_max: a larger result raises, because it is sent to every executor. `coarse(...).explain()` shows its
        parts.

    Raises:
        NotATableError: there is no index, or no such version. SchemaError: a column that cannot be indexed.
        PredicateError: `where` cannot be read. InvalidArgumentError: more than `bytes_max`.
    """
    for name, value in {"filter_bytes": filter_bytes, "bytes_max": bytes_max}.items():
        if not is_integer(value, 0):
            raise InvalidArgumentError(f"{name}= is a number of bytes, 0 or more, not {value!r}")
    with open_table(path, version=version, index_path=index_path, storage_options=storage_options) as table:
        node = None if where is None else where_node(where, table.schema)
        result = coarse_of(table.handle, columns, filter_bytes, node)
        if result.size_bytes > bytes_max:
            raise InvalidArgumentError(
                f"{result.explain()}\nare more than bytes_max={bytes_max:,}: name fewer columns, give where= (of "
                "filters only the rows of its values are sent) or a smaller filter_bytes=, allow more by bytes_max=, "
                "or let scan() prune, which sends each task its own files alone"
            )
        return result


def predicate(spark: SparkSession, where: Any, coarse: Coarse | None = None) -> Node | SparkPredicate:
    """Return a predicate of `scan` as a value that can be pickled. `prune_partition`, `scan`, `read_parquet` and option
    `where` of a load accept it in any process, without a parser.

        shared = sks.coarse("lake/flights", ["t"])
        needles = sks.predicate(spark, "t >= timestamp '2020-01-05 00:00:00'", shared)  # in this session's time zone
        spark.read.format("skipstone").option("where", needles).load("lake/flights")

    Args:
        spark: the session whose settings define what a text or a Column means.
        where: SQL text or a PySpark Column; or, without Spark's meaning, tuples, `col` or a pyarrow expression.
        coarse: of the table. With it, names are looked up now, and Spark's analyzer reads the text. Without it, and
            over Spark Connect, DuckDB's parser reads the text, and parts that Spark may read differently prune nothing.
            A Column needs it, and a classic session.

    Raises PredicateError for a predicate that cannot be read and, with `coarse`, for a name that is not in the table.
    """
    is_column = type(where).__module__.startswith("pyspark.")
    if not isinstance(where, str) and not is_column:
        return parse(where)
    if coarse is not None and not isinstance(coarse, Coarse):
        raise InvalidArgumentError(f"coarse= is the result of coarse(), not a {type(coarse).__name__}")
    from . import catalyst
    from .sessions import session_of, spark_tree

    if is_column and (coarse is None or not catalyst.is_classic(spark)):
        raise PredicateError("predicate() reads a Column with coarse=, in a classic session: pass these, or SQL text")
    if coarse is None:
        return SparkPredicate(text_tree(str(where)), session_of(spark), str(where))
    made = SparkPredicate(spark_tree(spark, where, coarse.schema)[0], session_of(spark), str(where))
    made.node(coarse.schema)  # raises for a name that the table does not have
    return made


def prune_partition(
    paths: Iterable[str | os.PathLike[str]], coarse: Coarse, where: object
) -> Iterator[tuple[str, list[int] | None]]:
    """In an executor, yield the files among `paths` that can contain a match, in order, each with the numbers of its
    row groups that can (ascending), or None for all of them.

    Statistics and Bloom filters prune, secondary indexes do not (`scan` and `lookup` use them, on the driver). No
    footer and no instant is read, only the fine indexes of the files that the coarse part leaves. Memory is bounded by
    a few thousand paths, whatever the length of `paths`.

    Args:
        paths: relative to the table, as in `files()`; absolute; or URIs with their escapes, as Spark's
            `input_file_name()` returns them. A path without a scheme is not unescaped.
        coarse: a result of `coarse`.
        where: a result of `predicate`; SQL text whose meaning does not depend on a session's time zone, case
            sensitivity and ANSI mode; pyarrow tuples, a `col` predicate or a pyarrow expression.

    Returns:
        (path as it was given, row groups or None). A path that the version of `coarse` does not contain is returned
        whole, and so is a file that was overwritten since if its row groups would matter. A path that is not returned
        contains no match in that version. Files of slices with logs are returned whole or not at all.

    If a fine index is damaged, or was cleaned concurrently, its files are returned whole, with a warning.

    Raises:
        PredicateError: `where` cannot be read, names a column that does not exist, or is text that depends on a
        session.
    """
    if not isinstance(coarse, Coarse):
        raise InvalidArgumentError(
            f"coarse is the result of coarse(), not a {type(coarse).__name__}; pass a broadcast's .value"
        )
    return coarse.prune(paths, where_node(where, coarse.schema))
