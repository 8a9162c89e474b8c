"""Spark over a Skipstone table: files are pruned on the driver, row groups in the executors.

    from skipstone import spark_adapter as sks

    df = sks.scan(spark, "lake/flights", where="tail_num = 'N14228'", columns=["flight", "dep_delay"])

    sks.register(spark)
    df = spark.read.format("skipstone").option("where", "tail_num = 'N14228'").load("lake/flights")
    df.write.format("skipstone").mode("append").save("lake/flights")

How a query runs, file by file of this folder:

    session     scan(), refresh(), register(): checks arguments on the driver, where errors are ours; pins a version
    request     what a load asks for, as the options of a data source
    source      the data source: plans on the driver (the coarse indexes) and hands out partitions
    packing     many files into few partitions
    column_tree, meaning, from_columns    PySpark Columns as predicates, where Spark means by them what we do
    residual    the rest of a Column, which Spark tests: what it needs to be read
    executor    one partition: prunes each file's row groups (the fine indexes), reads the rows that match
    loads       loads of ours in a DataFrame's plan, and their versions
    explaining  explain(): what was skipped for a DataFrame
    views       view(): a temporary view that is planned anew by each query
    native      read_parquet(): Spark's own Parquet reader over the files that are left; shielding is of its filters
    parquet_types    which stored types that reader reads as which
    to_columns  predicates as Spark's own filters
    own_jobs    coarse() and prune_partition(): pruning in other people's jobs
    translate   Arrow types to those that Spark takes over the wire
    jobs        a function over many parts, run by executors, with progress
    writer      df.write: one transaction, a task a partition; write_request has its options, incoming its types
    saving      save(): from any thread, with the version that was read
    build       indexes built by executors, published by the driver
    clustering  files rewritten so that rows alike in some columns lie together; clustering_rows is its executors' part,
                rewritten how its files are to be
    attach      attaching to a lake, footers read by executors
    pyspark_skipstone    a top-level package: by it Spark finds the data source without register()
    semi_join   many keys looked up: joined against a secondary index, the rest by Spark; joining is its executors' part

The predicate is part of the load, and every `scan` is a fresh load. Spark's own filter pushdown is not used: PySpark
keeps one plan for a relation whatever filters are on it, and a second query over it loses rows. A filter on the
DataFrame itself (`df.filter`, `df.where`) is Spark's: right, but it prunes nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..engine.scan.coarse import Coarse
    from .attach import create
    from .build import create_index, optimize, refresh_index
    from .clustering import Clustering, cluster
    from .explaining import explain
    from .native import read_parquet
    from .own_jobs import coarse, predicate, prune_partition
    from .saving import save
    from .semi_join import lookup
    from .session import refresh, register, scan
    from .views import view

__all__ = [
    "Clustering",
    "Coarse",
    "cluster",
    "coarse",
    "create",
    "create_index",
    "explain",
    "lookup",
    "optimize",
    "predicate",
    "prune_partition",
    "read_parquet",
    "refresh",
    "refresh_index",
    "register",
    "save",
    "scan",
    "view",
]
_ROOMS = {
    "Clustering": ".clustering",
    "Coarse": "..engine.scan.coarse",
    "cluster": ".clustering",
    "coarse": ".own_jobs",
    "create": ".attach",
    "create_index": ".build",
    "explain": ".explaining",
    "lookup": ".semi_join",
    "optimize": ".build",
    "predicate": ".own_jobs",
    "prune_partition": ".own_jobs",
    "read_parquet": ".native",
    "refresh": ".session",
    "refresh_index": ".build",
    "register": ".session",
    "save": ".saving",
    "scan": ".session",
    "view": ".views",
}


def __getattr__(name: str) -> object:
    # Executors import this package for `executor` alone: the driver's part stays out of every worker.
    if name in _ROOMS:
        return getattr(importlib.import_module(_ROOMS[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
