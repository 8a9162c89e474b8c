"""The engine: what a table is, how it changes, and how a query finds out what to skip.

Users call `create.py` and `open.py`, which return the tables of `table.py`; `opening.py` opens their handles. Each
folder or file imports only from those before it in this list:

    choices.py, html.py    the words that arguments take, as types; small pages and whole documents
    shown.py      how notebooks and prompts show tables and versions
    progress.py   progress bars and functions
    storage/      files by path, on the local disk or in an object store: read ranges, put, put if absent, list, delete
    predicates/   parse, bind, simplify, evaluate: which outcomes a predicate may have, and which rows match
    observing.py  events for hooks and the log: plans, commits, builds
    scan_log.py   an optional file with a line per scan: the query, and what it skipped
    hive.py       partition values as text in paths, and back
    state/        versions: the timeline of instants, the manifest of live files, the runs both are kept in
    parquet/      Parquet's own bytes: footers, statistics, pages
    lakes/        the sources of live files: a directory, a Delta log, Iceberg metadata, a Hudi timeline
    handle.py     what one version is read by: storage, timeline, runs, instant. `Table.handle` is one
    indexes/      the protocol of an index kind, then a folder per kind: stats/, bloom/, secondary/, ngram/
    tasks/        one writer's share of a commit: files attached, declared or written, with their task index file
    views.py      partitions, files, history and indexes of a version, as tables
    commit/       transactions, and the verbs that create versions: sync, alter, undo, clean, optimize, build indexes
    stale.py      whether a directory changed since the last sync, and what a query does; status.py lists changes
    scan/         plan, prune, fine pruning, reading rows, explain
    rows_by_key/  delete, update and upsert: files that contain the rows are written again

A scan: `Table.scan` creates the plan of `scan/plan.py`; `scan/prune.py` finds the files that may match, by partitions,
indexes and statistics; `scan/row_groups.py` finds their row groups, by task index files; `scan/duckdb_reader.py` and
`scan/file_reader.py` read them and test rows.

A commit: `commit/transaction.py` collects tasks; `commit/edit.py` gives their files ids; each index kind adds its runs;
`commit/commit.py` puts the instant if no other commit was first, or plans again.

Verbs over a whole table import all of these: `adopt.py`, `verify.py`, `doctor.py`, `report.py` with
`column_layout.py`, `perf.py`, and `advice/`, which builds indexes over a sample to estimate what they save.
`clustering.py` orders rows that are rewritten, for Spark.

`LAYOUT.md` in this folder describes the files on disk.
"""
