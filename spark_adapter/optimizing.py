"""`optimized`, `sql` and `session`: plain queries that read only what their filters leave (`plan_rewriting`)."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError
from .loads import check_frame
from .plan_rewriting import rewritten
from .spark_versions import check_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_blocks: weakref.WeakKeyDictionary[SparkSession, list[int]] = weakref.WeakKeyDictionary()  # threads, once a block
_blocks_lock = threading.Lock()


def optimized(frame: DataFrame) -> DataFrame:
    """The same rows as a DataFrame's, with the relations of ours in its plan read by the filters that are on them:
    filters, projections, joins, views and subqueries may stand above.

        sks.optimized(spark.table("flights").join(planes, "tailnum").where("tailnum = 'N14228'")).show()

    Relations are those of `scan`, of `format("skipstone")` and of `view`, each at its version; and of
    `spark.read.parquet(path)` where the table at `path` has an index whose latest version has the very files that Spark
    would read. What the clock says (`current_timestamp()`) is fixed now. Filter, join and select first: what is put on
    the result is Spark's again. Below what depends on the order of rows (`sample`, `rand(7)`, row numbers, functions of
    Python that are not deterministic) relations are read as Spark reads them, so that its result is the same.

    A plan that is not understood is left as it is, with a warning.

    Raises NotReadableError for a folder that `spark.read.parquet` (or a table of the catalog) lists whole although the
    table there has replaced or removed some of its files, as `delete`, `merge` and `cluster` do: Spark would return
    deleted rows. Use `view`, `scan` or `read_parquet` instead. Raises InvalidArgumentError over
    Spark Connect, where no plan can be seen: use `scan` with `where=`.
    """
    check_frame(frame, "optimized")
    _check_classic(frame.sparkSession)
    return rewritten(frame)


def sql(spark: SparkSession, text: str, *args: Any, **kwargs: Any) -> DataFrame:
    """`spark.sql(text)`, `optimized`. A command (CREATE, INSERT) is Spark's alone.

        sks.sql(spark, "SELECT count(*) FROM flights WHERE tailnum = 'N14228'")

    Raises as `optimized`, and what `spark.sql` raises.
    """
    _check_classic(spark)
    return optimized(type(spark).sql(spark, text, *args, **kwargs))


@contextlib.contextmanager
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Within a block, each `spark.sql` of this thread is `sks.sql`.

        with sks.session(spark):
            spark.sql("SELECT count(*) FROM flights WHERE tailnum = 'N14228'").show()

    Raises as `optimized`.
    """
    _check_classic(spark)
    thread = threading.get_ident()
    with _blocks_lock:
        _blocks.setdefault(spark, []).append(thread)
        spark.__dict__["sql"] = functools.partial(_sql_of_block, weakref.ref(spark))
    try:
        yield spark
    finally:
        with _blocks_lock:
            _blocks[spark].remove(thread)
            if not _blocks[spark]:
                del spark.__dict__["sql"]


def _sql_of_block(session: weakref.ref[SparkSession], *args: Any, **kwargs: Any) -> DataFrame:
    spark = session()
    assert spark is not None
    frame = type(spark).sql(spark, *args, **kwargs)
    return optimized(frame) if threading.get_ident() in _blocks[spark] else frame


def _check_classic(spark: Any) -> None:
    check_spark("4.0", "optimized()")
    if not hasattr(spark, "_jsparkSession"):
        raise InvalidArgumentError(
            "over Spark Connect a query's plan is the server's alone: give the filter to the load, "
            "sks.scan(spark, path, where=..., columns=[...]), and query that"
        )
