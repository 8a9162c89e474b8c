"""A table: a handle on one version, the verbs that read it, and those that create other versions.

A handle pins what it saw when it was opened; `refresh` moves it to the latest, and so does an action through it. A
handle on an older version reads, and refuses actions. Each verb's work is in the module that it imports: a process that
looks one value up does not pay for the others.
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
from .stale import check_answers, sync_stale

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
    """A handle on one version of a table. Made by `create` and `open`; threads may read through one.

    handle    what the version is read by: storage, timeline, runs, instant. For the code of this package; it may change
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
        """Moves this handle to the latest version that can be read. Where a newer one was lost, a warning says so, or
        under `strict` a CorruptionError."""
        self.handle.refresh()
        return self

    def close(self) -> None:
        """Lets go of what this handle opened. It may be used again."""
        self.handle.close()

    def partitions(self) -> pa.Table:
        """One row a partition: partition, one typed column a key, file_count, row_count, size_bytes."""
        from .shown import shown
        from .views import partitions_view

        return shown(partitions_view(self.handle.snapshot))

    def files(self, partition: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """One row a live file: file_id, partition, path, size_bytes, row_count, segment, kind, file_group; or those
        `columns` of them, of which nothing else is read."""
        from .shown import shown
        from .views import listed_files

        return shown(listed_files(self.handle.snapshot, self._partition_ids(partition), partition, columns))

    def files_by_id(self, ids: Sequence[int] | pa.Array) -> pa.Table:
        """The files of some numbers, as `files()` gives them, by number; those that are not live are left out."""
        from .views import files_by_id

        return files_by_id(self.handle.snapshot, ids)

    def file_ids(self, paths: Sequence[str]) -> pa.Array:
        """uint64 [n]: the number of each of some paths, null for one that is not live. A number is a file's for ever:
        a path that comes back has another."""
        from .state.paths import paths_of

        wanted = [self.handle.relative(path) for path in paths_of(paths)]
        ids = self.handle.snapshot.find(wanted)
        return pa.array([ids.get(path) for path in wanted], pa.uint64())

    def slices(self, partition: str | None = None, latest: bool = True) -> pa.Table:
        """The file slices: what is read of each file group, or with `latest=False` every slice that it has.

        Columns: partition, file_group (null for a file without one, which is a slice of its own), slice_instant, base
        (its path, null where none is there yet) and base_size_bytes, logs (paths; delete and rollback blocks too),
        log_count, log_bytes; is_latest: it, or something of it, is read; is_pending: its base, or that of a later slice
        read with it, is not there yet; is_compacted: a base and no logs; dead (paths): what carries nothing at this
        version, logs of failed or rolled back commits and bases of commits that are not completed.
        """
        from .shown import shown
        from .views import slices_view

        if not isinstance(latest, bool):
            raise InvalidArgumentError(f"latest= is True or False, not {latest!r}")
        return shown(slices_view(self.handle.snapshot, self._partition_ids(partition), latest))

    def file_groups(self, partition: str | None = None) -> pa.Table:
        """The file groups; a file without one is a group of its own.

        Columns: partition, file_group, slices, latest_instant (of what is not dead), files, size_bytes,
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
        """One row a savepoint, by version: name, version, time (of that version)."""
        from .shown import shown
        from .views import savepoints_view

        return shown(savepoints_view(self.handle.instant, self.handle.timeline))

    def indexes(self) -> pa.Table:
        """One row an index: name, columns, kind, files_covered, files_total, size_bytes, options."""
        from .shown import shown
        from .views import indexes_view

        return shown(indexes_view(self.handle.snapshot))

    def layout(self, column: str) -> Layout:
        """Return how a column's values are spread over the files, by the files' bounds: how many of them a value is in.
        `skipstone layout` draws it.

        Raises SchemaError for a column that is not there, or whose type has no order.
        """
        from .column_layout import layout_of

        return layout_of(self.handle.snapshot, column, self.handle.strict)

    def verify(self, deep: bool = False) -> list[Finding]:
        """What is wrong, [] when sound: versions that were lost, runs that are damaged, files that are gone or others,
        files that are quarantined, files that hold columns which the table does not read. `deep` reads every instant,
        every byte of the index, and every footer. A directory that changed since the last sync is no finding: a
        warning says so, as for a query."""
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
        """Report which index on which column would have let queries skip how much, at what cost.

        Candidates are built over a sample of the files that the queries read, in a temporary folder, and the queries
        are planned with each: what they keep is scaled to all files. Data of the sample is read; nothing of the table
        or of its index is changed.

        Args:
            queries: WHERE clauses or SELECTs of this table as texts, or predicates as `scan` takes them.
            log: instead of `queries`, a log of scans (`open(scan_log=)`): those of this table, as often as each was
                asked.
            sample_files: on so many files it is tried, at most. More are slower and forecast better.
            progress: called as f(step, done, total), or True for a bar on stderr.

        Raises:
            InvalidArgumentError: neither queries nor a log, or both; the table's partitions are in its log alone.
            StorageError: the log of scans cannot be read. What of the queries cannot be read is named in the result.
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
        """A picture of the version that this handle reads: one page of HTML that needs no network. Returns it.

        Sizes and files by partition, how each column's values lie over the files, indexes with their coverage and a
        filter's false positives, measured; the timeline. Names and values are escaped.

        Args:
            output: a local file to write it to, whole or not at all.
            log: a log of scans (`open(scan_log=)`): what they skipped, and by which columns.
            advice: what `advise` returned.

        Raises StorageError where `output` cannot be written, or `log` read.
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
        """A plan for the rows that match.

        Args:
            where: SQL text, pyarrow tuples, a `col` predicate, or an expression of pyarrow or polars; None for every
                row. A text means what it means to DuckDB. Parts that we do not understand prune nothing, and are tested
                on the rows that are left by DuckDB, pyarrow or polars.
            columns: what to read (default: all), in this order; a field of a struct by its dotted path, which is then
                the column's name.
            limit: at most so many rows: the first ones of `order_by`, else any.
            mode: "snapshot", or "read_optimized": each file slice is its latest base alone, as it was before its logs.
            refresh: "sync" follows the directory, or the log, first: see `sync`.
            reader: "pyarrow"; "duckdb", for local files that DuckDB reads exactly; or "auto", the faster of the two.
                The rows are the same. `explain` shows which reader was used, and why.
            params: the values of a text's parameters: a list for `?`, a dict for `$name`. They stay values, whatever
                is in them.
            order_by: a column, `(column, "desc")`, `(column, "desc", "nulls_first")`, or a list of these. Ascending
                where nothing is said, nulls last (as in DuckDB), NaN above all else. With a `limit`, files, row groups
                and rows that cannot be among the first are not read.

        Raises:
            PredicateError: `where` cannot be read, or names no column. SchemaError: `columns` or `order_by` does.
            InvalidArgumentError: the reader is not installed.
        """
        if refresh not in (None, "sync"):
            raise InvalidArgumentError(f'refresh= is "sync", or nothing, not {refresh!r}')
        if refresh is not None:
            from .commit.sync_log import sync_table

            sync_table(self.handle)

        def plan() -> Plan:
            read, selected = read_columns(columns, self.schema)
            options = {"limit": limit, "order_by": order_by, "mode": mode, "reader": reader, "fields": selected}
            return Plan(PlannedScan(ScanRequest.of(self.handle, read, **options), where, params), selected)

        return self._planned(plan)

    def _planned(self, plan: Callable[[], Plan]) -> Plan:
        """A plan over what `on_stale` says. With "sync" it is made again after a sync if a file of it was overwritten
        in place, which its folder's time does not show."""
        check_answers(self.handle)
        made = plan()
        if self.handle.on_stale == "sync" and made.planning.request.checks_files:
            try:
                made.planning.check_files(np.ones(made.planning.pruned.units.count, dtype=bool), every=True)
            except NotReadableError:
                sync_stale(self.handle)
                made = plan()
        return made

    def head(self, n: int = 5) -> pa.Table:
        """At most n rows, of any files. See `Plan.head`."""
        return self.scan().head(n)

    def dataset(self, *, follow: bool = False) -> LakeDataset:
        """The version that the handle reads, as a pyarrow Dataset that plans each of its scans through the index.

        DuckDB and polars hand it the columns and the filters of their queries, which then skip what they need not read:

            lake = ss.open("lake/flights").dataset()
            duckdb.sql("SELECT dest FROM lake WHERE tailnum = 'N14228'")
            polars.scan_pyarrow_dataset(lake).filter(polars.col("tailnum") == "N14228").collect()

        With `follow`, each scan first moves this handle to the latest version, and the dataset with it: for processes
        that run for long. If the table's columns change, scans raise SchemaError.
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
        """A query of DuckDB over this version, which is called `self` in it. See `skipstone.sql`.

        table.sql("SELECT action, sum(amount) FROM self WHERE ts >= '2026-01-01' GROUP BY action").show()
        """
        from .scan.duckdb_sql import sql

        return sql(query, con, explain=explain, self=self)

    def lazy(self) -> pl.LazyFrame:
        """The version that the handle reads as a polars LazyFrame: the filters, columns and slices of its query reach
        the index. Raises InvalidArgumentError where polars is not installed."""
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

        A secondary index of the columns returns the rows. Files that it does not cover are read and compared. If 16 of
        the keys of one column show that keys are in many rows of most files, these are scanned instead.

        Args:
            keys: an Arrow table, or anything with its C stream, of which all columns, or those of `on`, are the key; or
                an array, or a list, of values of the one column `on`. Tens of millions are fine. Keys of any type
                mean what `=` means of them; a key with a null, or of no value that the column can hold, equals
                nothing.
            on: columns of the table, by name.
            columns, limit, reader: as in `scan`.

        Raises SchemaError for columns that are not there, and for keys that cannot be compared with them.
        """
        from .scan.lookup import lookup

        def plan() -> Plan:
            read, selected = read_columns(columns, self.schema)
            request = ScanRequest.of(self.handle, read, limit=limit, reader=reader)
            return Plan(lookup(keys, on, request), selected)

        return self._planned(plan)

    # -- changing -----------------------------------------------------------------------------------------------------

    def transaction(self, key: str | None = None) -> Transaction:
        """Opens a transaction; `key`, if given, makes a retry of the same work commit once."""
        from .commit.transaction import Transaction

        self._check_writes(key)
        return Transaction(self.handle, key)

    def distributed_transaction(self, key: str | None = None) -> DistributedTransaction:
        """Begins a transaction whose tasks, and whose end, are in other processes, while this one need not live on:
        for jobs of Spark, Ray or Dask. Picklable."""
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
        """Changes the schema, in one step; no file is touched. Returns the version made; nothing to change makes none.

        `rename`, `drop` and `widen` name columns as they are before the call; `add` and `order` as they are after it.
        Only top-level data columns are altered. A column keeps its statistics and filters under its new name; one
        that is dropped loses its indexes, and a later one of the same name begins empty.

        Args:
            rename: old names to new ones; {"a": "b", "b": "a"} swaps two.
            add: names to types, or to pyarrow scalars; or fields. Files that lack the column hold null in every row,
                or that scalar; rows that are written without it hold null.
            drop: names. The values stay in the files, and are not read again.
            widen: names to types that hold each value exactly: int32 to int64, float to double, more digits, more
                fields at the end of a struct; no instants to nanoseconds.
            order: all names, in the wanted order.

        A file is read by the names that the table had when the file was added. Files that hold an added column under
        its name are bound again, under new ids, where no column of this table ever had that name before and its type
        holds theirs: filters and secondary indexes do not cover them until `refresh_index`. Otherwise what files
        hold stays unread (replace() a file by itself to bind it again), and so does what comes under a name from before
        a rename. A transaction uses the names of the version that it began with. An added column gets statistics, in
        an index of its own.

        Raises:
            SchemaError: no such column, a partition column, a name that is taken, a type that would lose values.
            CommitConflictError: another writer altered the schema meanwhile.
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
        """Builds an index over the live files and keeps it from then on. Returns the version made.

        Args:
            columns: a name, or several: each gets a filter of its own; statistics are kept together; of a secondary
                index they are the key, in their order: its first columns can be asked for without the others. Of a
                list column a filter or a secondary index contains the elements; it is the key by itself then.
                A text that is no column's name is an expression that DuckDB reads: "lower(email)". Commits keep no
                statistics of expressions: files that they add wait for `refresh_index`.
            kind: "bloom": which files and row groups may hold a value; "secondary": which rows hold it; "stats": what
                files and row groups span, from their footers; "ngram": in which blocks of rows a text may occur, for
                LIKE '%x%', ILIKE, contains, regexp_matches and the like.
            fpp: of a filter: how often a row group without the value may be read, from 1e-6 to 0.1 (default: 0.001).
                A filter over a file of several row groups has a rate of its own.
            maintain: "commit": what transactions write is indexed as it is written; "refresh": not even that. Files
                that are merely added, or synced, wait for `refresh_index` of a filter or a secondary index, and may
                match until then.
            shard_bytes: of statistics and of a secondary index: a run that grows beyond is cut in shards of about this
                size: a number, or "small" (8 MiB), "medium" (64 MiB, as where nothing is said), "large" (512 MiB).
            include: of a secondary index: columns whose values its entries contain. A query that needs no columns but
                these, those of the key and partition columns is answered by the index, and no data file is read.
                Columns of nested types, and fields of structs, cannot be included.

            ignore_case: of "ngram": ILIKE, lower(x) LIKE and case-insensitive expressions use the index as well.
                Without it (by default) they do not, and it is a little smaller.

        A build that takes long publishes what it has from time to time: killed, it goes on with `refresh_index`.

        Raises:
            SchemaError: no such column, or of a type that cannot be indexed. InvalidArgumentError: there already.
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
        """Covers the files that an index lacks. Returns the version; nothing to cover makes none."""
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
        """Takes an index away. Returns the version made."""
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
        """Follows the directory: files that appeared, went, or changed under the same path (size, time) are committed,
        from one listing and the footers of what is new. Nothing new makes no version.

        A file that cannot be read, or whose columns or partition keys do not fit, is quarantined and tried again at
        each sync; if it took the place of a live file, that stays live, and reading it raises. `explain` and `verify`
        name quarantined files, and queries warn of them. Filters and secondary indexes do not cover new files until
        `refresh_index`, so they may match.

        Args:
            new_columns: "adopt": columns that files hold under names that no column of this table ever had become the
                table's, behind its others, and files of before that hold them are bound again, under new ids. After a
                drop or a rename the old name never comes back. "report": they are named in the result alone. Of a
                table that follows a log, the log says what its columns are.
            new_types: what happens if files have a column in another type, and one type contains the values of both
                exactly, as int64 does for int32. "widen": the table's column gets that type in the same version; the
                indexes stay. "quarantine": the files are quarantined.
            refresh: afterwards every index covers the files that it lacks: their data is read where they need it.
            dry_run: return what would be added and removed, and commit nothing. No footer is read, so files that
                would be quarantined are among the added.

        Returns:
            The version, an int, with what was added, removed and quarantined.

        Raises:
            CorruptionError, SchemaError: this handle is strict, and a file would be quarantined.
            NotATableError: the directory is gone.
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
        from .commit.sync_log import sync_table

        adopts, widens = new_columns == "adopt", new_types == "widen"
        result = sync_table(self.handle, _reported(progress), adopts=adopts, widens=widens)
        if not refresh:
            return result
        from .commit.indexing import refresh_all

        return result.moved_to(refresh_all(self.handle, progress=_reported(progress)))

    def optimize(self, *, progress: Progress | bool | None = None) -> int:
        """Does what commits leave for later: indexes cover the files that they lack, statistics let go of files that
        went and recompute what their partitions span, runs are merged where that pays.
        Readers of older versions are not disturbed. Returns the version; nothing to do makes none."""
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
        """Removes what only old versions name, and what transactions that died left behind.

        A version stays readable while it is one of the last `retain_versions`, or was the latest less than `min_age`
        ago, or a savepoint names it. A transaction that published nothing, and all of whose files are older than
        `min_age`, is given up first: if it is running still, it ends with CommitConflictError. With `min_age` of zero
        every running transaction that wrote a file ends so. If nothing is to be removed, no version is created.

        Args:
            retain_versions: 1 or more.
            min_age: keep it longer than the longest scan, as executors read the files of versions a little old, and
                longer than the longest transaction, unless that calls `keep_alive`. Ages are taken by the clock of the
                storage, not of this machine.
            delete_data: remove, too, the data files that no readable version names: those taken out of the table that
                lie on storage as they were, and those that dead transactions wrote. Otherwise no data file is touched.
            dry_run: only report.

        Returns:
            What is removed (or would be): kind ("data", "run", "task", "temporary"), path, size_bytes.
            Paths of data are relative to the table, the others to the index. If that is nothing, the result shows why
            at a prompt, and has it in `schema.metadata[b"note"]`.

        Raises CorruptionError where the newest version was lost: what it named is not removed.
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

        Runs of indexes are written again without the values of files that are not live. Bloom filters may stay: they
        have bits of hashes, and no value. If nothing was deleted since the last purge, no version is created. A purge
        that was interrupted is finished by the next one.

        Data files are removed below the table's directory only. In a Delta, Iceberg or Hudi table they belong to the
        log: its own vacuum removes them, and `purge` purges the index, after a `sync`.

        Args:
            drop_savepoints: drop all savepoints first. Otherwise a savepoint raises, as its version has deleted rows.
            min_age: the safety margin. A transaction that wrote a file less long ago, and did not commit it, raises; an
                older one is given up. If no writer is running, it may be zero.
            progress: called as f(step, done, total), or True for a bar on stderr.

        Returns:
            What was removed, as `clean` does: kind, path, size_bytes.

        Raises:
            InvalidArgumentError: there are savepoints. CommitConflictError: a transaction may be running.
            CorruptionError: an index is damaged, and cannot be written again; nothing else is undone by that.
        """
        from .commit.purge import purge
        from .shown import shown

        check_flags(drop_savepoints=drop_savepoints)
        self.handle.check_latest()
        return shown(purge(self.handle, drop_savepoints, min_age, _reported(progress)))

    def rollback(self, n: int = 1) -> int:
        """Undo the newest `n` versions, by one more: the live files, commit states and keys of idempotent commits are
        those of the version before them. Return the version created.

        Each of the versions is one that changed files: a commit, replace, sync, rollback or restore. `restore` goes
        back to any version, whatever was created since. If the files are already the same, no version is created.

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
        """Make the live files those of an older version again, with the commit states and the keys of then. Every
        version in between can still be opened. Return the version; if nothing changes, none is created.

        The schema and the definitions of indexes stay as they are now. A file that returns keeps its id. An index that
        existed then covers the files as it did then; one that was created since covers those that return after
        `refresh_index`. A file is read by the columns of now: one that contains a column which was added since is
        bound again, as `sync` does it.

        Raises:
            NotReadableError: the data of a file that should return, or a run of the index, is missing or changed.
            InvalidArgumentError: no such version or savepoint.
        """
        from .commit.restore import restore

        self.handle.check_latest()
        self.handle.check_owns_files()
        return restore(self.handle, version, savepoint)

    def savepoint(self, name: str) -> int:
        """Gives the version that this handle reads a name, which `open`, `restore` and people can use, and which keeps
        `clean` from it. Returns the version made, which says so. Of a table that follows a log it names what is
        committed, without what came to the log since: sync() first, where that is to be in it.

        Raises InvalidArgumentError for a name that is taken, CommitConflictError where it was taken meanwhile.
        """
        from .commit.restore import make_savepoint

        self.handle.check_latest()
        return make_savepoint(self.handle, name)

    def drop_savepoint(self, name: str) -> int:
        """Takes a savepoint away; its version stays until it is cleaned. Returns the version made."""
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
        """Deletes the rows for which `where` is TRUE. Rows for which it is FALSE or NULL stay.

        The files that contain such rows are written again without them, in one commit over the newest version. Every
        index then covers the new files; of 50,000 rows and more, secondary indexes by a version of their own. Rows
        that others append meanwhile stay. The old files stay on storage for older versions; other readers of the
        directory see them until `clean(delete_data=True)`.

        A table that follows a Delta or Iceberg log is changed through deltalake or pyiceberg: any other commit to it
        meanwhile is a conflict, and the indexes follow after the commit. Iceberg tables are opened by their catalog.

        Args:
            where: as for `scan`; "true" for every row. All of it must be understood.
            params: as for `scan`.
            key: makes a retry of the same change commit once. A retry returns the version of the first call.
            dry_run: return which files and how many rows would change, and change nothing.
            progress: called as f(step, done, total), or True for a bar on stderr.

        Raises:
            CommitConflictError: another writer replaced or removed one of the files meanwhile.
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
        """Gives columns new values in the rows for which `where` is TRUE.

            table.update({"status": "'closed'", "amount": "amount * 1.1"}, "day < '2024-01-01'")

        Args:
            values: column -> SQL expression of DuckDB over the old values of the row, which is cast to the column's
                type. A row whose partition columns change goes to another partition.
            where, params, key, dry_run, progress: as for `delete`.

        Raises as `delete`; PredicateError for an expression that is not one value of each row, SchemaError for a
        column that is not there and for values that do not fit.
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
        """Updates or deletes the rows whose key is among those of `rows`, and inserts the others, in one commit.

            table.upsert(changed, on=["id"])

        Keys are compared as `lookup` compares them. A key with a NULL matches nothing, so its row is inserted. A
        secondary index of the key's columns finds the rows; without one, files whose statistics or filters admit the
        keys are read.

        Args:
            rows: an Arrow table, or anything with an Arrow C stream, with columns of the table: those of `on`, and
                others.
            on: the columns of the key.
            when_matched: "update": the row gets the values of the other columns of `rows`. "delete": it is deleted.
                None: it stays.
            when_not_matched: "insert": a row whose key the table does not have is added; columns that `rows` lacks are
                NULL. None: it is left out.
            key, dry_run, progress: as for `delete`.

        Raises as `delete`; InvalidArgumentError if two rows have one key, SchemaError for columns that the table does
        not have and for values that do not fit. CommitConflictError, too, if rows are inserted and another writer
        changed a partition that may have their keys.
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
