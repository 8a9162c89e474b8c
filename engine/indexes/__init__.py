"""Indexes: stored evidence about the values in data files, from which scans decide which files and rows to read.

A kind of index is a folder with `kind.py`, whose `KIND` is a `kind.IndexKind`; its name is in `kind.NAMES`. Scans,
commits and writers call kinds through this protocol. `scan/` also calls statistics by name: every table has them.

    define       check columns and options (`columns.py` has both checks); return one `IndexState` per index
    build        index files that the index lacks (`parquet/footers.open_indexed`); return a `BuildResult`: the runs
                 and the files that were left out. `BuildContext.path` returns each run's path: a failure removes it
    part_spec    return a picklable object with which a writer's task builds a part of the index from the rows that it
                 writes
    commit       add the parts that a commit's tasks built (`CommitContext.parts_of`)
    merge        return an index with fewer runs, or the same index if a merge does not pay
    probes       return what the index can prove about a predicate; each `Probe` returns the possible outcomes per file
    of_new_columns           index columns that were added and that no live file has
    read_coarse, rows_reader    read what executors need without the rest; list the rows of some values
    shown_options, advised_options, can_find    what users and `advise` need to know of a kind
    is_current, updated_definition, referenced_files    whether old runs are usable for a column; the files of a run

A run is one immutable sorted-block file that contains its own path (`state/runs.py: written_as`). Only its kind reads
its keys. A kind excludes outcomes only for files that have entries in it. ANY excludes nothing and is always
correct. The callers maintain the coverage (`state/coverage.py`): a file in no run is read.

    stats/        bounds and counts of columns, per file and per partition
    bloom/        filters: which files and row groups may contain a value
    secondary/    the rows that contain a value
    ngram/        the blocks of rows in which a text may occur

Shared: `kind.py` (the protocol), `columns.py` (where columns are in files, evidence about them), `column_reader.py`
(reads them), `elements.py` (elements of list columns), `derived.py` (elements and expressions that are indexed like
columns), `entry_sorting.py` (sorts the entries of secondary and n-gram indexes, and adds them to runs),
`probe_results.py` (what probes prove), `row_index.py` (finds the index that lists the rows of some values),
`task_result.py` (what a writer's task passes to a commit).
"""
