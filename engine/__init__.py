"""The engine: what a table is, how it changes, and how a query finds out what it need not read.

Users meet `table.py`, and `create.py` and `open.py`, which return tables; `opening.py` opens the handles below them.
Below them, a room imports only from rooms that are before it in this list:

    choices.py, html.py    the words that arguments take, as types; small pages and whole documents
    shown.py      how notebooks and prompts show tables and versions
    progress.py   what every room uses to report how far it is
    storage/      files by path, on the local disk or in an object store: read ranges, put, put if absent, list, delete
    predicates/   parse, bind, simplify, evaluate: which outcomes a predicate may have, and which rows match
    observing.py  events for whoever listens: plans, commits, builds
    scan_log.py   a file of what scans asked and skipped, where somebody wants one
    hive.py       partition values as text in paths, and back
    state/        versions: the timeline of instants, the manifest of live files, the runs both are kept in
    parquet/      Parquet's own bytes: footers, statistics, pages
    lakes/        where live files come from: a directory, a Delta log, Iceberg metadata
    handle.py     what one version is read by: storage, timeline, runs, instant. `Table.handle` is one
    indexes/      the protocol of an index kind, then a folder a kind: stats/, bloom/, secondary/
    tasks/        one writer's share of a commit: files attached, declared or written, with their task index file
    views.py      what a version holds, as tables for people
    commit/       transactions, and the verbs that make versions: sync, alter, undo, clean, optimize, build indexes
    stale.py      whether a directory changed since the last sync, and what a query does then; status.py says it all
    scan/         plan, prune, fine pruning, reading rows, explain
    rows_by_key/  delete, update and upsert: files that contain the rows are written again

A scan: `Table.scan` makes a `scan/plan.py`; `scan/prune.py` asks partitions, indexes and statistics which files
may match; `scan/row_groups.py` asks their task index files which row groups may; `scan/duckdb_reader.py` and
`scan/file_reader.py` read them and test rows.

A commit: `commit/transaction.py` gathers tasks; `commit/bind.py` gives their files ids; each index kind adds its runs;
`commit/commit.py` puts the instant if no other commit was first, or plans again.

Above all stand verbs that users call with a table: `adopt.py`, `verify.py`, `doctor.py`, `report.py` with
`column_layout.py`, `perf.py`, and `advice/`, which builds indexes over a sample to say which would pay.
`clustering.py` orders rows that are written again, for Spark.

What lies on disk: `LAYOUT.md` beside this file.
"""
