"""Indexes: what is known of the values in files.

A kind of index is a folder with `kind.py`, whose `KIND` is a `kind.IndexKind`; its name is in `kind.NAMES`. Scans,
commits and writers call kinds by this protocol. Statistics, which every table has, are also called by name in `scan/`.

    define       checks columns and options (`columns.py` has both checks), returns an `IndexState` for each index
    build        reads files that the index lacks (`parquet/footers.open_indexed`), returns `BuildResult`: its runs,
                 and the files that it had to leave out. `BuildContext.path` gives each run's path, so that a failure
                 removes the file
    part_spec    a picklable object with which a writer's task builds a part of the index from the rows that it writes
    commit       adds the parts of a commit's tasks (`CommitContext.parts_of`)
    merge        fewer runs, or itself if nothing pays
    probes       what it proves about a predicate; each `Probe` returns the outcomes that are possible per file
    is_current, renewed, referenced_files    whether old runs can still be used for a column; which files a run names

A run is one immutable sorted-block file that names itself (`state/runs.py: written_as`); only its kind reads its keys.
A kind excludes outcomes only of files that it has entries of: ANY proves nothing and is always right. The callers keep
the coverage (`state/coverage.py`): a file in no run is read.

    stats/       bounds and counts of columns, by file and by partition
    bloom/       filters: which files and row groups may contain a value
    secondary/   the rows that contain a value
    ngram/       the blocks of rows in which a text may occur

Shared: `kind.py` (the protocol), `columns.py` (where columns are in files, evidence about them), `column_reader.py`
(reads them), `elements.py` (those of list columns), `derived.py` (elements and expressions in the place of columns),
`entry_sorting.py` (sorts the entries of secondary and n-gram indexes, and adds them to runs), `probe_results.py` (what
probes prove), `row_index.py` (the index that lists the rows of some values), `task_result.py` (what a writer's task
passes to a commit).
"""
