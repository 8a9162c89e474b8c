"""Spark over a Skipstone table: the driver prunes files, executors prune row groups and read the rows that match.

    from skipstone import spark_adapter as sks

    df = sks.scan(spark, "lake/flights", where="tail_num = 'N14228'", columns=["flight", "dep_delay"])

    sks.register(spark)
    df = spark.read.format("skipstone").option("where", "tail_num = 'N14228'").load("lake/flights")
    df.write.format("skipstone").mode("append").save("lake/flights")

The verbs run on the driver, in the caller's process:

    scanning          scan, refresh, register: checks arguments, where errors are ours, and pins a version
    views             view: a temporary view that each query plans anew
    parquet_reader    read_parquet: Spark's own Parquet reader over the files that are left
    semi_join         lookup: many keys, joined against a secondary index
    optimizing        optimized, sql, session: plain queries that skip, by Catalyst's own plan
    joining           join: scans that skip by the keys of a small side
    explaining        explain: what was skipped for a DataFrame
    saving            save: from any thread, with a check of the version that was read
    upkeep            sync, verify, clean by executors; perf
    build             create, create_index, refresh_index, optimize: by executors
    deleting, merging    delete, merge: rows deleted, updated and inserted, by writing files anew
    clustering        cluster: files rewritten so that similar rows lie together
    pruning           coarse, predicate, prune_partition: pruning in jobs of your own

They stand on these, each of which imports from those above it; verbs import `scanning` too, and no other verb
(`tests/house/test_floors.py` holds that):

    spark_versions    the differences between versions of PySpark
    options           what a load or a save asks for, as options of a data source: texts
    wire_types        Arrow types and rows as Spark takes and hands them
    parts             what the parts of a job are, and how they reach executors
    jobs              a function over many parts, run by executors: progress and errors
    hang_ups          in an executor: a consumer that stops early is no error
    shares            files dealt out to tasks; in an executor, the rows of a task's files
    clustering_tasks, semi_join_tasks, rewriting_tasks    what executors do for clustering; lookup; delete and merge
    builders          listing, footers and indexes, as executors do them
    key_files         where keys may lie: their range, files that an index does not cover
    old_calendar      files whose days Spark's own reader shows as others
    rewriting         what verbs that rewrite files have in common on the driver
    column_tree       a PySpark Column, classic or of Connect, as one tree
    catalyst_tree     an expression in a plan of Spark's, as the same tree
    spark_semantics   where a comparison means the same to Spark and to us
    from_columns      Columns as predicates
    where_text        SQL text where no session is: what means one thing in all of them
    to_columns        predicates as Columns
    pushdown_guard    what Spark's Parquet reader would read or skip wrongly
    metadata_answers  count(*), min and max of whole tables, from metadata
    source            the data source "skipstone": planned on the driver, read and written by executors
    listed_files      the files that Spark's own reader listed, against those of the table
    loads             the loads of ours in a DataFrame's plan, and their versions
    formats           what format("skipstone") does besides, in a process that registered it
    sessions          what a session decides: what texts and Columns mean, in which session a thread works
    plan_rewriting    Catalyst's plan of a query, its relations loaded anew by its filters

Executors import `shares`, `wire_types` and `source`, or a `*_tasks`; of the verbs only `upkeep`, for its parts. What
they need travels in partitions, closures and rows: Spark's own channel, pickled. Nothing pickled goes through storage,
where others may write. `pyspark_skipstone` is a top-level package: by its name Spark finds the data source without
`register`.

The predicate is part of the load, and every `scan` is a fresh load. Spark's own filter pushdown is not used: PySpark
keeps one plan for a relation whatever filters are on it, and a second query over it loses rows. A filter on the
DataFrame itself (`df.filter`, `df.where`) is Spark's: correct, but it prunes nothing, save through `optimized`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy import names_from

if TYPE_CHECKING:
    from ..engine.scan.coarse_snapshot import Coarse
    from .build import create, create_index, optimize, refresh_index
    from .clustering import Clustering, cluster
    from .deleting import delete
    from .explaining import explain
    from .joining import join
    from .merging import merge
    from .optimizing import optimized, session, sql
    from .parquet_reader import read_parquet
    from .pruning import coarse, predicate, prune_partition
    from .rewriting import RowChanges
    from .saving import save
    from .scanning import refresh, register, scan
    from .semi_join import lookup
    from .upkeep import clean, perf, sync, verify
    from .views import view

__all__ = [
    "Clustering",
    "Coarse",
    "RowChanges",
    "clean",
    "cluster",
    "coarse",
    "create",
    "create_index",
    "delete",
    "explain",
    "join",
    "lookup",
    "merge",
    "optimize",
    "optimized",
    "perf",
    "predicate",
    "prune_partition",
    "read_parquet",
    "refresh",
    "refresh_index",
    "register",
    "save",
    "scan",
    "session",
    "sql",
    "sync",
    "verify",
    "view",
]
_HOMES = {
    "Clustering": ".clustering",
    "Coarse": "..engine.scan.coarse_snapshot",
    "RowChanges": ".rewriting",
    "clean": ".upkeep",
    "cluster": ".clustering",
    "coarse": ".pruning",
    "create": ".build",
    "create_index": ".build",
    "delete": ".deleting",
    "explain": ".explaining",
    "join": ".joining",
    "lookup": ".semi_join",
    "merge": ".merging",
    "optimize": ".build",
    "optimized": ".optimizing",
    "perf": ".upkeep",
    "predicate": ".pruning",
    "prune_partition": ".pruning",
    "read_parquet": ".parquet_reader",
    "refresh": ".scanning",
    "refresh_index": ".build",
    "register": ".scanning",
    "save": ".saving",
    "scan": ".scanning",
    "session": ".optimizing",
    "sql": ".optimizing",
    "sync": ".upkeep",
    "verify": ".upkeep",
    "view": ".views",
}


# Executors import this package too: the verbs, and what they import, stay out of every worker.
__getattr__ = names_from(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
