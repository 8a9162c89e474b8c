"""Spark over a Skipstone table: the driver prunes files, executors prune row groups and read the rows that match.

    from skipstone import spark_adapter as sks

    df = sks.scan(spark, "lake/flights", where="tail_num = 'N14228'", columns=["flight", "dep_delay"])

The verbs run on the driver. `__init__.pyi` lists their names; each is loaded when it is first used, so that executors,
which import this package too, load no verb. In these modules a verb imports no other verb, except `scanning`:

    scanning, key_lookup, explaining, optimizing, pruning     read
    saving, row_changes, clustering, maintenance              write and maintain

They use these modules, each of which imports from those above it:

    spark_versions    the differences between versions of PySpark
    options, spark_semantics  options of a load or a save; whether a comparison means the same to Spark and to us
    wire_types        Arrow types and rows as Spark exchanges them
    jobs              a function over many parts, run by executors
    shares            files divided among tasks; in an executor, the rows of a task's files
    clustering_tasks, lookup_tasks    what executors do for cluster; lookup
    old_calendar      files whose times Spark's own reader would show as others
    executors         the work of a table on many files, done by executors
    columns, catalyst         predicates of Spark as ours; all uses of private classes of the JVM
    source            the data source "skipstone": planned on the driver, read and written by executors
    sessions          what a session means by a predicate; registers the data source; what a plan loaded from us
    parquet_reader    Spark's own Parquet reader, over the files that pruning leaves

What executors need travels in partitions, closures and rows: Spark's own channel, pickled. Nothing pickled goes through
storage, where others may write. By the name `pyspark_skipstone`, a top-level package, Spark finds the data source
without `register`.

The predicate is part of the load, and every `scan` is a fresh load. Spark's own filter pushdown is not used: PySpark
keeps one plan for a relation whatever filters are on it, and a second query over it loses rows. A filter on the
DataFrame itself (`df.where`) is Spark's: correct, but it prunes nothing, except through `optimized`.
"""

from __future__ import annotations

from ..base.lazy import exports_of, names_from

_HOMES = exports_of(__name__)

__all__ = sorted(_HOMES)
__getattr__ = names_from(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
