"""A table: a handle on one version, the verbs that read it, and those that create other versions.

A handle pins the version at which it was opened. `refresh` moves it to the latest, and an action through it moves it
to the version that it creates. A handle on an older version refuses actions. Each verb imports the module that does its
work, so a process that looks up one value does not import the others.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError, NotReadableError, check_flags
from .handle import Handle
from .scan.plan import Plan
from .scan.planning import PlannedScan
from .scan.request import ScanRequest, read_columns
from .stale import check_answers, sync_for_query

if TYPE_CHECKING:
    import polars as pl
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from .advice.advise import Advice
    from .choices import IndexKindName, Maintenance, NewColumns, NewTypes, Reader, Refresh, ScanMode, ShardSize
    from .column_layout import Layout
    from .commit.alter import Added
    from .commit.distributed import DistributedTransaction
    from .commit.sync import SyncResult
    from .commit.transaction import Transaction
    from .progress import Progress
    from .rows_by_key.verbs import Change, WhenMatched, WhenNotMatched
    from .scan.lake_dataset import LakeDataset
    from .scan.request import OrderBy
    from .status import Status
    from .verify import Finding


class Table:
    """A handle on one version of a table. `create` and `open` return it. Threads may read through one handle.

    handle    the storage, timeline, runs and instant of the version: internal, it may change
    """

    def __init__(self, handle: Handle):
        self.handle = handle

    def __repr__(self) -> str:
        totals = self.handle.snapshot.instant.totals
        return (
            f"<skipstone.Table {self.location!r} version {self.version}: "
            f"{totals['files']:,} files, {totals['rows']:,} rows>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def location(self) -> str:
        """The table's directory."""
        return self.handle.location

    @property
    def version(self) -> int:
        """The version that this handle reads; 1 after `create`."""
        return self.handle.version

    @property
    def schema(self) -> pa.Schema:
        """Data columns and partition columns."""
        return self.handle.schema

    def refresh(self) -> Self:
        """Move this handle to the latest version that can be read. If a newer version was lost, warn; a strict handle
        raises CorruptionError."""
        self.handle.refresh()
        return self

    def close(self) -> None:
        """Close the files that this handle opened. The handle stays usable."""
        self.handle.close()

    def partitions(self) -> pa.Table:
        """One row per partition: partition, one typed column per key, file_count, row_count, size_bytes."""
        from .shown import shown
        from .views import partitions_view

        return shown(partitions_view(self.handle.snapshot))

    def files(self, partition: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """One row per live file: file_id, partition, path, size_bytes, row_count, segment, kind, file_group. With
        `columns`, only these are read and returned."""
        from .shown import shown
        from .views import listed_files

        return shown(listed_files(self.handle.snapshot, self._partition_ids(partition), partition, columns))

    def slices(self, partition: str | None = None, latest: bool = True) -> pa.Table:
        """The file slices that are read, or with `latest=False` every slice of each file group.

        Columns: partition, file_group (null for a file without one, which is one slice), slice_instant, base (its path,
        null if there is none yet) and base_size_bytes, logs (paths, also of delete and rollback blocks), log_count,
        log_bytes; is_latest: the slice, or a part of it, is read; is_pending: its base, or that of a later slice that
        is read with it, is not written yet; is_compacted: a base and no logs; dead (paths): files without rows at this
        version, which are logs of failed or rolled back commits and bases of commits that are not completed.
        """
        from .shown import shown
        from .views import slices_view

        if not isinstance(latest, bool):
            raise InvalidArgumentError(f"latest= is True or False, not {latest!r}")
        return shown(slices_view(self.handle.snapshot, self._partition_ids(partition), latest))

    def file_groups(self, partition: str | None = None) -> pa.Table:
        """The file groups. A file without one counts as a group.

        Columns: partition, file_group, slices, latest_instant (of files that are not dead), files, size_bytes,
        uncompacted_logs: how many logs and blocks are read with its base.
        """
        from .views import file_groups_view

        return file_groups_view(self.handle.snapshot, self._partition_ids(partition))

    def _partition_ids(self, partition: str | None) -> list[int] | None:
        if partition is None:
            return None
        from .views import partition_id

        return [partition_id(self.handle.snapshot, partition)]

    def history(self) -> pa.Table:
        """One row per version up to this one: version, time, action, state, files_added, files_removed, ..."""
        from .shown import shown
        from .views import history_view

        return shown(history_view(self.handle.timeline.history(self.version)))

    def savepoints(self) -> pa.Table:
        """One row per savepoint, sorted by version: name, version, time (of that version)."""
        from .shown import shown
        from .views import savepoints_view

        return shown(savepoints_view(self.handle.instant, self.handle.timeline))

    def indexes(self) -> pa.Table:
        """One row per index: name, columns, kind, files_covered, files_total, size_bytes, options."""
        from .shown import shown
        from .views import indexes_view

        return shown(indexes_view(self.handle.snapshot))

    def layout(self, column: str) -> Layout:
        """Return how a column's values are spread over the files: how many files contain a value by their bounds.
        `skipstone layout` draws it.

        Raises SchemaError for a column that does not exist, or whose type has no order.
        """
        from .column_layout import layout_of

        return layout_of(self.handle.snapshot, column, self.handle.strict)

    def verify(self, deep: bool = False) -> list[Finding]:
        """Return a list of problems, empty if there are none: lost versions, damaged runs, files that are missing or
        changed, quarantined files, files with columns that the table does not read. `deep` reads every instant, every
        byte of the index, and every footer. A directory that changed since the last sync is not a problem: `verify`
        warns of it, as a query does."""
        from .verify import verify

        return verify(self.handle, deep)

    def status(self) -> Status:
        """Return what changed in the directory, or in the log, since the last sync; which files are quarantined; and
        how many files each index does not cover. The directory is listed; nothing is committed."""
        from .status import status

        return status(self.handle)

    def advise(
        self,
        queries: Iterable[object] | None = None,
        *,
        log: str | os.PathLike[str] | None = None,
        sample_files: int = 32,
        progress: Progress | bool | None = None,
    ) -> Advice:
        """Report which indexes would help queries, how much each would let them skip, and what it costs.

        Candidates are built over a sample of the files that the queries read, in a temporary folder, and the queries
        are planned with each. The results are scaled to all files. Data of the sample is read; the table and its index
        are not changed.

        Args:
            queries: WHERE clauses or SELECTs of this table as texts, or predicates as `scan` accepts them.
            log: instead of `queries`, a log of scans (`open(scan_log=)`): those of this table, each weighted by how
                often it ran.
            sample_files: how many files the sample has at most. More files are slower and give better estimates.
            progress: called as f(step, done, total), or True for a bar on stderr.

        Raises:
            InvalidArgumentError: neither queries nor a log is given, or both are; or only the table's log contains the
                partitions. StorageError: the log of scans cannot be read. The result names queries that cannot be read.
        """
        from .advice.advise import advise
        from .progress import progress_function

        return advise(self.handle, queries, log, sample_files, progress_function(progress))

    def report(
        self,
        output: str | os.PathLike[str] | None = None,
        *,
        log: str | os.PathLike[str] | None = None,
        advice: Advice | None = None,
    ) -> str:
        """Return a report on the version that this handle reads, as one page of HTML that needs no network.

        It shows sizes and files by partition, how the values of each column are spread over the files, the indexes with
        their coverage and the measured false positives of filters, and the timeline. Names and values are escaped.

        Args:
            output: a local file to write it to, atomically.
            log: a log of scans (`open(scan_log=)`): adds what they skipped.
            advice: what `advise` returned.

        Raises StorageError if `output` cannot be written, or `log` cannot be read.
        """
        from .report import report

        return report(self.handle, output, log, advice)

    # -- reading ------------------------------------------------------------------------------------------------------

    def scan(
        self,
        where: object = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        mode: ScanMode = "snapshot",
        refresh: Refresh | None = None,
        reader: Reader = "auto",
        params: Sequence | Mapping | None = None,
        order_by: OrderBy | None = None,
    ) -> Plan:
        """Return a plan for the rows that match. It reads rows when one of its methods needs them.

        Args:
            where: SQL text, pyarrow tuples, a `col` predicate, or an expression of pyarrow or polars; None for every
                row. DuckDB defines what a text means. Parts that Skipstone does not understand prune nothing; DuckDB,
                pyarrow or polars tests them on the remaining rows.
            columns: the columns to read (default: all), in this order. A field of a struct is named by its dotted
                path, which becomes the name of the column.
            limit: at most this many rows: the first by `order_by`, otherwise any.
            mode: "snapshot", or "read_optimized": of each file slice only the latest base, without its logs.
            refresh: "sync" syncs first: see `sync`.
            reader: "pyarrow"; "duckdb", for local files that DuckDB reads exactly; or "auto", the faster of the two.
                The rows are the same. `explain` shows which reader was used, and why.
            params: the values of a text's parameters: a list for `?`, a dict for `$name`. They are never read as SQL.
            order_by: a column, `(column, "desc")`, `(column, "desc", "nulls_first")`, or a list of these. By default
                ascending, with nulls last (as in DuckDB). NaN is the greatest value. With a `limit`, files, row groups
                and rows that cannot be among the first are not read.

        Raises:
            PredicateError: `where` cannot be read, or names a column that does not exist. SchemaError: `columns` or
                `order_by` does. InvalidArgumentError: the reader is not installed.
        """
        if refresh not in (None, "sync"):
            raise InvalidArgumentError(f'refresh= is "sync", or nothing, not {refresh!r}')
        if refresh is not None:
            from .commit.sync import sync_table

            sync_table(self.handle)

        def plan() -> Plan:
            read, selected = read_columns(columns, self.schema)
            options = {"limit": limit, "order_by": order_by, "mode": mode, "reader": reader, "fields": selected}
            return Plan(PlannedScan(ScanRequest.of(self.handle, read, **options), where, params), selected)

        return self._planned(plan)

    def _planned(self, plan: Callable[[], Plan]) -> Plan:
        """Check for changes as `on_stale` defines, and plan. With "sync", sync and plan again if a file of the plan was
        overwritten in place, which its folder's time does not show."""
        check_answers(self.handle)
        made = plan()
        if self.handle.on_stale == "sync" and made.planning.request.checks_files:
            try:
                made.planning.check_files(np.ones(made.planning.pruned.units.count, dtype=bool), every=True)
            except NotReadableError:
                sync_for_query(self.handle)
                made = plan()
        return made

    def head(self, n: int = 5) -> pa.Table:
        """At most n rows from any files. See `Plan.head`."""
        return self.scan().head(n)

    def dataset(self, *, follow: bool = False) -> LakeDataset:
        """The version that the handle reads, as a pyarrow Dataset that plans each of its scans through the index.

        DuckDB and polars pass it the columns and filters of their queries, so these skip files and row groups:

            lake = ss.open("lake/flights").dataset()
            duckdb.sql("SELECT dest FROM lake WHERE tailnum = 'N14228'")
            polars.scan_pyarrow_dataset(lake).filter(polars.col("tailnum") == "N14228").collect()

        With `follow`, each scan first moves this handle and the dataset to the latest version: for processes that run
        for long. If the table's columns change, scans raise SchemaError.
        """
        check_flags(follow=follow)
        if follow:
            self.handle.check_latest()

        def newest() -> Plan:
            if follow:
                self.handle.refresh()
            check_answers(self.handle)
            return Plan(PlannedScan(ScanRequest.of(self.handle)))

        from .scan.lake_dataset import LakeDataset

        return LakeDataset(newest(), newest=newest if follow else None)

    @overload
    def sql(self, query: str, con: DuckDBPyConnection | None = None, *, explain: Literal[True]) -> str: ...
    @overload
    def sql(self, query: str, con: DuckDBPyConnection | None = None) -> DuckDBPyRelation: ...
    def sql(
        self, query: str, con: DuckDBPyConnection | None = None, *, explain: bool = False
    ) -> DuckDBPyRelation | str:
        """Run a DuckDB query, in which this version is the table `self`. See `skipstone.sql`.

        table.sql("SELECT action, sum(amount) FROM self WHERE ts >= '2026-01-01' GROUP BY action").show()
        """
        from .scan.duckdb_sql import sql

        return sql(query, con, explain=explain, self=self)

    def lazy(self) -> pl.LazyFrame:
        """The version that the handle reads, as a polars LazyFrame. The filters, columns and slices of a query reach
        the index. Raises InvalidArgumentError if polars is not installed."""
        check_answers(self.handle)
        return Plan(PlannedScan(ScanRequest.of(self.handle))).lazy()

    def lookup(
        self,
        keys: object,
        on: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        reader: Reader = "auto",
    ) -> Plan:
        """Return a plan for the rows whose values in some columns are one of many keys: a semi-join.

        A secondary index of the columns finds the rows. Files that it does not cover are read and compared. If 16 of
        the keys of one column show that keys are in many rows of most files, these files are scanned instead.

        Args:
            keys: an Arrow table, or an object with an Arrow C stream, whose columns (all, or those of `on`) are the
                key; or an array or a list of values of the one column `on`. Tens of millions are fine. Keys are
                compared as by `=`: a key with a null matches nothing, and so does one that the column cannot contain.
            on: names of columns of the table.
            columns, limit, reader: as in `scan`.

        Raises SchemaError for columns that do not exist, and for keys that cannot be compared with them.
        """
        from .scan.lookup import lookup

        def plan() -> Plan:
            read, selected = read_columns(columns, self.schema)
            request = ScanRequest.of(self.handle, read, limit=limit, reader=reader)
            return Plan(lookup(keys, on, request), selected)

        return self._planned(plan)

    # -- changing -----------------------------------------------------------------------------------------------------

    def transaction(self, key: str | None = None) -> Transaction:
        """Open a transaction. With a `key`, a retry of the same work commits once."""
        from .commit.transaction import Transaction

        self._check_writes(key)
        return Transaction(self.handle, key)

    def distributed_transaction(self, key: str | None = None) -> DistributedTransaction:
        """Begin a transaction whose tasks and commit run in other processes, for jobs of Spark, Ray or Dask. It is
        picklable, and this process may end before the commit."""
        from .commit.distributed import DistributedTransaction

        self._check_writes(key)
        return DistributedTransaction.start(self.handle, key)

    def _check_writes(self, key: object) -> None:
        self.handle.check_latest()
        self.handle.check_owns_files()
        _check_key(key)

    def alter(
        self,
        *,
        rename: Mapping[str, str] | None = None,
        add: Added | None = None,
        drop: str | Sequence[str] | None = None,
        widen: Mapping[str, pa.DataType] | None = None,
        order: Sequence[str] | None = None,
    ) -> int:
        """Change the schema in one step. No file is changed. Return the version; if nothing changes, none is created.

        `rename`, `drop` and `widen` name columns as they are before the call, `add` and `order` as they are after it.
        Only top-level data columns can be altered. A column keeps its statistics and filters under its new name. A
        dropped column loses its indexes, and a later column of the same name begins empty.

        Args:
            rename: old names to new ones; {"a": "b", "b": "a"} swaps two.
            add: names to types, or to pyarrow scalars; or fields. Files that lack the column return null in every row,
                or that scalar; rows that are written without it have null.
            drop: names. The values stay in the files, and are not read again.
            widen: names to types that contain each value exactly: int32 to int64, float to double, more digits, more
                fields at the end of a struct; not times to nanoseconds.
            order: all names, in the wanted order.

        A file is read by the names that the table had when the file was added. If files contain an added column under
        its name, no column of this table ever had that name, and the type contains their values, these files are bound
        again under new ids; filters and secondary indexes do not cover them until `refresh_index`. Otherwise the column
        in these files is not read (`replace` a file by itself to bind it again), and neither are columns under a name
        from before a rename. A transaction uses the names of the version at which it began. An added column gets
        statistics in a separate index.

        Raises:
            SchemaError: no such column, a partition column, a name that is taken, a type that would lose values.
            CommitConflictError: another writer altered the schema concurrently.
        """
        from .commit.alter import alter

        self.handle.check_latest()
        self.handle.check_owns_files()
        return alter(self.handle, rename, add, drop, widen, order)

    def create_index(
        self,
        columns: str | Sequence[str],
        kind: IndexKindName,
        *,
        fpp: float | None = None,
        maintain: Maintenance = "commit",
        shard_bytes: int | ShardSize | None = None,
        ignore_case: bool | None = None,
        include: str | Sequence[str] | None = None,
        progress: Progress | bool | None = None,
    ) -> int:
        """Build an index over the live files. Return the version.

        Args:
            columns: a name, or several. With "bloom" and "ngram" each column gets an index; with "stats" one index
                contains all; with "secondary" they are the key, in this order, and queries may test only the first
                ones. Of a list column a filter or a secondary index contains the elements, which are then the whole
                key. A text that is not the name of a column is an expression for DuckDB: "lower(email)". Statistics of
                an expression do not cover files that `sync` attaches until `refresh_index`.
            kind: "bloom": which files and row groups may contain a value; "secondary": which rows contain it; "stats":
                the bounds of files and row groups, from their footers; "ngram": which blocks of rows may contain a
                text, for LIKE '%x%', ILIKE, contains, regexp_matches and similar tests.
            fpp: of a filter: how often a row group without the value may be read, from 1e-6 to 0.1 (default: 0.001).
                The rate of a filter over a file of several row groups is recorded with it.
            maintain: "commit": what transactions write is indexed as it is written; "refresh": it is not. In both
                cases filters and secondary indexes do not cover files that are added by name or synced, so these may
                match, until `refresh_index`.
            shard_bytes: of statistics and of a secondary index: a larger run is split in shards of about this size: a
                number, or "small" (8 MiB), "medium" (64 MiB, the default), "large" (512 MiB).
            include: of a secondary index: columns whose values its entries contain. A query that needs only these, the
                key and partition columns reads no data file. Nested columns and fields of structs cannot be included.
            ignore_case: of "ngram": ILIKE, lower(x) LIKE and case-insensitive expressions use the index as well. By
                default they do not, and the index is a little smaller.

        A long build commits its progress from time to time. If it is killed, `refresh_index` continues.

        Raises:
            SchemaError: no such column, or its type cannot be indexed. InvalidArgumentError: the index exists already.
        """
        from .commit.indexing import create_index

        self.handle.check_latest()
        all_options = {"fpp": fpp, "shard_bytes": shard_bytes, "ignore_case": ignore_case, "include": include}
        options = {name: value for name, value in all_options.items() if value is not None}
        version = create_index(
            self.handle, columns, kind, maintain=maintain, options=options, progress=_reported(progress)
        )
        return self._with_indexes(version, columns, kind)

    def refresh_index(
        self, columns: str | Sequence[str], kind: IndexKindName, *, progress: Progress | bool | None = None
    ) -> int:
        """Index the files that an index does not cover. Return the version; if it covers all, none is created."""
        from .commit.indexing import refresh_index

        self.handle.check_latest()
        version = refresh_index(self.handle, columns, kind, progress=_reported(progress))
        return self._with_indexes(version, columns, kind)

    def _with_indexes(self, version: int, columns: str | Sequence[str], kind: str) -> int:
        """Return the version that shows the size of these indexes at a prompt."""
        from .indexes.derived import indexed_name
        from .shown import VersionResult, bytes_text

        instant = self.handle.instant
        names = {indexed_name(instant, name) for name in ([columns] if isinstance(columns, str) else columns)}
        parts = []
        for index in instant.indexes:
            paths = [instant.path_of(number) for number in index.columns]
            if index.kind == kind and names.intersection(paths):
                parts.append(f"{kind}({', '.join(paths)}), {bytes_text(sum(run.size_bytes for run in index.runs))}")
        return VersionResult(version, f"version {version}: {'; '.join(parts)}")

    def drop_index(self, columns: str | Sequence[str], kind: IndexKindName) -> int:
        """Drop an index. Return the new version."""
        from .commit.indexing import drop_index

        self.handle.check_latest()
        return drop_index(self.handle, columns, kind)

    def sync(
        self,
        *,
        new_columns: NewColumns = "adopt",
        new_types: NewTypes = "widen",
        refresh: bool = False,
        dry_run: bool = False,
        progress: Progress | bool | None = None,
    ) -> SyncResult:
        """Commit the files that were added, removed, or changed under the same path (size, time, etag). Return the
        version, an int, with their paths. If nothing changed, no version is created.

        `sync` lists the directory once and reads the footers of new files. A file that cannot be read, or whose columns
        or partition keys do not fit, is quarantined and tried again at each sync. If it replaced a live file, that file
        stays live, and reading it raises. `explain` and `verify` name quarantined files, and queries warn of them.
        Filters and secondary indexes do not cover new files, so these may match, until `refresh_index`.

        Args:
            new_columns: "adopt": columns of files become the last columns of the table if no column of it ever had
                their name; older files that contain them are bound again under new ids. A name that was dropped or
                renamed is never adopted. "report": the result only names them. If the table follows a log, the log
                defines the columns.
            new_types: what happens if files have a column in another type, and one type contains the values of both
                exactly, as int64 does for int32. "widen": the table's column gets that type in the same version; the
                indexes stay. "quarantine": the files are quarantined.
            refresh: afterwards index the files that indexes do not cover; their data is read if an index needs it.
            dry_run: return what would be added and removed, and commit nothing. No footer is read, so files that
                would be quarantined are among the added.

        Raises:
            CorruptionError, SchemaError: this handle is strict, and a file would be quarantined.
            NotATableError: the directory is missing.
        """
        if new_columns not in ("adopt", "report"):
            raise InvalidArgumentError(f'new_columns= is "adopt" or "report", not {new_columns!r}')
        if new_types not in ("widen", "quarantine"):
            raise InvalidArgumentError(f'new_types= is "widen" or "quarantine", not {new_types!r}')
        self.handle.check_latest()
        check_flags(dry_run=dry_run)
        if dry_run:
            from .status import foreseen_sync

            return foreseen_sync(self.handle.refresh())
        from .commit.sync import sync_table

        adopts, widens = new_columns == "adopt", new_types == "widen"
        result = sync_table(self.handle, _reported(progress), adopts=adopts, widens=widens)
        if not refresh:
            return result
        from .commit.indexing import refresh_all

        return result.with_version(refresh_all(self.handle, progress=_reported(progress)))

    def optimize(self, *, progress: Progress | bool | None = None) -> int:
        """Index the files that indexes do not cover, drop statistics of removed files, recompute the bounds of their
        partitions, and merge runs. Readers of older versions are not affected. Return the version; if there is nothing
        to do, none is created."""
        from .commit.indexing import optimize

        self.handle.check_latest()
        optimize(self.handle, _reported(progress))
        return self.version

    def clean(
        self,
        *,
        retain_versions: int = 10,
        min_age: dt.timedelta = dt.timedelta(hours=24),
        delete_data: bool = False,
        dry_run: bool = False,
        progress: Progress | bool | None = None,
    ) -> pa.Table:
        """Remove files that only old versions name, and files of transactions that never committed.

        A version stays readable if it is one of the last `retain_versions`, was the latest less than `min_age` ago, or
        has a savepoint. A transaction that did not commit, and whose files are all older than `min_age`, is given up
        first: if it is still running, it raises CommitConflictError. A `min_age` of zero ends every running transaction
        that wrote a file. If there is nothing to remove, no version is created.

        Args:
            retain_versions: 1 or more.
            min_age: longer than the longest scan, because executors read files of slightly older versions, and longer
                than the longest transaction that does not call `keep_alive`. Ages are measured by the clock of the
                storage, not of this machine.
            delete_data: also remove data files that no readable version names: those that were removed from the table
                and are unchanged on storage, and those of transactions that never committed. Without it, no data file
                is removed.
            dry_run: only report.

        Returns:
            The files that are removed (or would be): kind ("data", "run", "task", "temporary"), path, size_bytes.
            Paths of data are relative to the table, the others to the index. If there are none, the result prints the
            reason, which is also in `schema.metadata[b"note"]`.

        Raises CorruptionError if the newest version was lost: the files that it named are not removed.
        """
        from .commit.clean import clean
        from .shown import shown

        check_flags(delete_data=delete_data, dry_run=dry_run)
        self.handle.check_latest()
        if delete_data:
            self.handle.check_owns_files()
        return shown(clean(self.handle, retain_versions, min_age, delete_data, dry_run, _reported(progress)))

    def purge(
        self,
        *,
        drop_savepoints: bool = False,
        min_age: dt.timedelta = dt.timedelta(hours=24),
        progress: Progress | bool | None = None,
    ) -> pa.Table:
        """Remove everything that was deleted before the call: all older versions, the data files that are not live, and
        every deleted value in the index. It ends time travel, `restore` and `rollback` to earlier versions.

        Runs of indexes are rewritten without the values of files that are not live. Bloom filters may stay: they
        contain bits of hashes, and no value. If nothing was deleted since the last purge, no version is created. If a
        purge is interrupted, the next one finishes it.

        Only data files below the table's directory are removed. In a Delta, Iceberg or Hudi table they belong to the
        log: its own vacuum removes them, and `purge` syncs and purges the index.

        Args:
            drop_savepoints: drop all savepoints first. Otherwise `purge` raises if there is one, because its version
                may contain deleted rows.
            min_age: the safety margin. `purge` raises if a transaction wrote a file more recently and did not commit;
                it gives up older ones. If no writer is running, it may be zero.
            progress: called as f(step, done, total), or True for a bar on stderr.

        Returns:
            The removed files, as `clean` returns them: kind, path, size_bytes.

        Raises:
            InvalidArgumentError: there are savepoints. CommitConflictError: a transaction may be running.
            CorruptionError: an index is damaged and cannot be rewritten. Older versions are removed all the same.
        """
        from .commit.purge import purge
        from .shown import shown

        check_flags(drop_savepoints=drop_savepoints)
        self.handle.check_latest()
        return shown(purge(self.handle, drop_savepoints, min_age, _reported(progress)))

    def rollback(self, n: int = 1) -> int:
        """Undo the newest `n` versions. This creates one version with the live files, commit states and keys of
        idempotent commits of the version before them. Return it. If the files are already the same, none is created.

        Each of the versions must have changed files: a commit, replace, sync, rollback or restore. `restore` goes back
        to any version.

        Raises:
            CommitConflictError: another version is above the one that this handle reads.
            NotReadableError: the data of a file that should return, or a run of the index, is missing or changed.
            InvalidArgumentError: there are not so many versions, or one of them changed no files (a clean, an
                `alter`, an index).
        """
        from .commit.restore import rollback

        self.handle.check_latest()
        self.handle.check_owns_files()
        return rollback(self.handle, n)

    def restore(self, version: int | None = None, *, savepoint: str | None = None) -> int:
        """Restore the live files of an older version, with its commit states and keys. The versions in between stay
        readable. Return the new version; if nothing changes, none is created.

        The schema and the definitions of indexes stay as they are now. A file that returns keeps its id. An index that
        existed at that version covers the files that it covered then; an index that was created since covers returned
        files after `refresh_index`. Files are read with the current columns: a file that contains a column which was
        added since is bound again, as by `sync`.

        Raises:
            NotReadableError: the data of a file that should return, or a run of the index, is missing or changed.
            InvalidArgumentError: no such version or savepoint.
        """
        from .commit.restore import restore

        self.handle.check_latest()
        self.handle.check_owns_files()
        return restore(self.handle, version, savepoint)

    def savepoint(self, name: str) -> int:
        """Give the version that this handle reads a name for `open` and `restore`, and keep `clean` from removing it.
        Return the new version. If the table follows a log, the savepoint contains what the last `sync` committed, so
        call `sync` first.

        Raises InvalidArgumentError for a name that is taken, CommitConflictError if it was taken concurrently.
        """
        from .commit.restore import make_savepoint

        self.handle.check_latest()
        return make_savepoint(self.handle, name)

    def drop_savepoint(self, name: str) -> int:
        """Drop a savepoint. Its version stays until `clean` removes it. Return the new version."""
        from .commit.restore import drop_savepoint

        self.handle.check_latest()
        return drop_savepoint(self.handle, name)

    # -- changing rows ------------------------------------------------------------------------------------------------

    def delete(
        self,
        where: object,
        *,
        params: Sequence | Mapping | None = None,
        key: str | None = None,
        dry_run: bool = False,
        progress: Progress | bool | None = None,
    ) -> Change:
        """Delete the rows for which `where` is TRUE. Rows for which it is FALSE or NULL stay.

        The files that contain such rows are rewritten without them, in one commit over the newest version. Every index
        then covers the new files; if 50,000 rows or more are rewritten and another writer commits first, a second
        version adds them to secondary indexes. Rows that others append concurrently stay. The old files stay on storage
        for older versions; other readers of the directory see them until `clean(delete_data=True)`.

        deltalake or pyiceberg changes a table that follows a Delta or Iceberg log. Any concurrent commit to it is a
        conflict, and the indexes are updated after the commit. Open Iceberg tables by their catalog.

        Args:
            where: as for `scan`; "true" for every row. Each part must be one that can be tested on rows.
            params: as for `scan`.
            key: makes a retry of the same change commit once. A retry returns the version of the first call.
            dry_run: return which files and how many rows would change, and change nothing.
            progress: called as f(step, done, total), or True for a bar on stderr.

        Raises:
            CommitConflictError: another writer replaced or removed one of the files concurrently.
            PredicateError: `where` cannot be read, or a part of it cannot be tested on rows.
            NotReadableError: a file belongs to a file group, or was overwritten since it was indexed.
            InvalidArgumentError: the handle is pinned, or the files belong to a log to which Skipstone cannot commit.
            StorageError: the library of a log did not confirm the commit.
        """
        from .rows_by_key.verbs import Options, delete

        _check_key(key)
        check_flags(dry_run=dry_run)
        return delete(self.handle, where, params, Options(key, dry_run, _reported(progress)))

    def update(
        self,
        values: Mapping[str, str],
        where: object,
        *,
        params: Sequence | Mapping | None = None,
        key: str | None = None,
        dry_run: bool = False,
        progress: Progress | bool | None = None,
    ) -> Change:
        """Set columns to new values in the rows for which `where` is TRUE.

            table.update({"status": "'closed'", "amount": "amount * 1.1"}, "day < '2024-01-01'")

        Args:
            values: column -> SQL expression of DuckDB over the old values of the row, which is cast to the column's
                type. A row whose partition columns change goes to another partition.
            where, params, key, dry_run, progress: as for `delete`.

        Raises as `delete`; PredicateError for an expression that is not one value per row, SchemaError for a column
        that does not exist and for values that do not fit.
        """
        from .rows_by_key.verbs import Options, update

        _check_key(key)
        check_flags(dry_run=dry_run)
        return update(self.handle, values, where, params, Options(key, dry_run, _reported(progress)))

    def upsert(
        self,
        rows: Any,
        on: str | Sequence[str],
        *,
        when_matched: WhenMatched | None = "update",
        when_not_matched: WhenNotMatched | None = "insert",
        key: str | None = None,
        dry_run: bool = False,
        progress: Progress | bool | None = None,
    ) -> Change:
        """Update or delete the rows whose key is in `rows`, and insert the other rows of it, in one commit.

            table.upsert(changed, on=["id"])

        Keys are compared as `lookup` compares them. A key with a NULL matches nothing, so its row is inserted. A
        secondary index of the key's columns finds the rows; without one, files whose statistics or filters admit the
        keys are read.

        Args:
            rows: an Arrow table, or an object with an Arrow C stream: the columns of `on`, and other columns of the
                table.
            on: the columns of the key.
            when_matched: "update": the row gets the values of the other columns of `rows`. "delete": it is deleted.
                None: it stays.
            when_not_matched: "insert": a row whose key the table does not have is added; columns that `rows` lacks are
                NULL. None: it is left out.
            key, dry_run, progress: as for `delete`.

        Raises as `delete`; InvalidArgumentError if two rows have one key, SchemaError for columns that the table does
        not have and for values that do not fit; CommitConflictError also if rows are inserted and another writer
        changed a partition that may contain their keys.
        """
        from .rows_by_key.verbs import Options, upsert

        _check_key(key)
        check_flags(dry_run=dry_run)
        options = Options(key, dry_run, _reported(progress))
        return upsert(self.handle, rows, on, when_matched, when_not_matched, options)


def _check_key(key: object) -> None:
    if key is not None and (not isinstance(key, str) or any("\ud800" <= c <= "\udfff" for c in key)):
        raise InvalidArgumentError(f"key= is a text, not {key!r}")


def _reported(progress: Progress | bool | None) -> Progress | None:
    from .progress import progress_function

    return progress_function(progress)
