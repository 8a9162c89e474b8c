"""Scans: what a query need not read.

plan.py     the plan that `Table.scan` returns; it works out each level when it is first asked for
prune.py    the driver's part: partitions, then files by indexes and statistics (`by_slices.py`: file slices)
fine.py     the executor's part: row groups, by the fine parts that task index files hold
rows.py     reads what is left, the predicate's columns first, and tests the rows
lookup.py   many keys at once, by a secondary index
coarse.py   the coarse level of an index, carried to executors that have files of their own to prune
explain.py, reasons.py   what each step did, and why a file was kept
"""
