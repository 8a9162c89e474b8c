"""Indexes: what is known of the values in files.

A kind of index is a folder whose `kind.py` holds `KIND`, an object with the verbs of `protocol.IndexKind`, and its name
in `protocol._BUILT_IN`. Scans, commits and merges call kinds by this protocol. Some know more of the three that are
built in: `engine/tasks` computes their entries in passing; `scan/prune.py`, `scan/coarse_snapshot.py` and
`commit/transaction.py` ask for statistics by name, which every table has; `commit/commit.py` reads ahead what a
secondary index merges; `explain` and the command line have words for each. To write one:

    define       checks columns and options (`columns.py` has both checks), returns an `IndexState` for each index
    build        reads files that the index lacks (`parquet/footers.open_indexed`), returns `Built`: its runs, the files
                 that it had to leave out. `Job.path` gives each run's path, so that a failure removes the file
    commit       adds the runs of what a commit's tasks carry; returns the index as it is where they carry nothing
    merge        fewer runs, or itself where nothing pays
    probes       what it can say of a predicate; each `Probe` gives the outcomes that are possible per file
    is_current, renewed, fine_paths    whether old runs can still be used for a column; what files a run names

A run is one immutable sorted-block file that names itself (`state/runs.py: written_as`); a kind alone knows its keys. A
kind may only exclude outcomes of files that it has seen: ANY proves nothing and is always right. The callers keep the
coverage (`state/coverage.py`): a file in no run is read. `tests/indexes/test_custom_index_kind.py` is a whole kind.

    stats/       bounds and counts of columns, by file and by partition
    bloom/       filters: which files and row groups may hold a value
    secondary/   the rows that hold a value

Each has `kind.py`, `format.py` (its bytes), `build.py` (existing files), and where runs are merged (`merge.py`, for
statistics `aggregates.py`). Shared: `protocol.py` (what a kind does, and is given), `columns.py` (where columns lie in
files), `probe_results.py` (what probes prove), `task_result.py` (what a writer hands to a commit).
"""
