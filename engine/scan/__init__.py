"""Scans: what a query need not read, and the rows of what it must.

In comes a `ScanRequest` (what a handle pins) and a predicate; out goes a `Plan`. Begin with `prune.py`.

request.py, plan.py    what is asked for; the public face of what comes out
planning.py            the work behind a plan: each level is worked out when it is first needed
prune.py               the driver's part: one loop over the probes of all indexes, for files and slices alike
survivors.py           what is left: units, their outcomes, their files' names once these are read
evidence.py            statistics and columns of one version; what becomes of damaged runs
fine.py                the executor's part: row groups, by the fine parts that task index files hold
tasks.py               what a driver hands to whoever reads: a task a file, and a context
rows.py                reads the rows of a file that match; file_reader.py whole row groups, by_duckdb.py few rows
lookup.py, keys.py     many keys at once, by a secondary index
coarse.py              the coarse level of an index, carried to executors that have files of their own to prune
extremes.py, bounds.py    min and max; bounds in one type
explain.py, reasons.py, steps.py    what each step did, and why a file was kept
fragments.py, lake_dataset.py    plans and tables as pyarrow Datasets
"""
