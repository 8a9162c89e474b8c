"""Scans: which files, row groups and rows a query can skip, and the rows that match.

In: a `ScanRequest` (what a handle pins) and a predicate. Out: a `Plan`. Begin with `prune.py`.

The plan
    request.py            the arguments of a scan, checked
    plan.py               the public face
    planning.py           the work behind it: each level is computed when it is first needed
    planned_rows.py       its rows, read from files and merged slices, or counted
    index_answer.py       rows that an index with included columns has, so that no data file is read
    lookup.py, keys.py    many keys at once, by a secondary index
On the driver
    prune.py              one loop over the probes of all indexes, for files and slices alike; damaged runs are ignored
    units.py              the units that are left, their outcomes, their files' names; rows that a log took out
    file_tasks.py         what is sent to a reader: a task a file, and a context
    coarse_snapshot.py    the coarse level of an index, for executors that have files of their own to prune
Where files are read
    row_groups.py         row groups, by the fine parts of task index files
    file_reader.py        the rows of a file that match, by pyarrow
    duckdb_reader.py      many files at once by DuckDB: duckdb_select.py (the query's text), duckdb_connection.py
Answers by bounds
    bounds.py             bounds of a column in one type
    best_first.py         files and row groups by their bounds, until none can be better
    top_n.py, extremes.py, group_counts.py    the first rows of an order, min and max, counts by value
For people and engines
    steps.py, explain.py, reasons.py    what each step did (also for hooks and the scan log), and why a file was kept
    fragments.py, lake_dataset.py, engine_frames.py    plans and tables as pyarrow Datasets, polars and DuckDB
    duckdb_sql.py         whole queries of DuckDB; duckdb_sql_plan.py reads the conditions of each table from its plan
"""
