"""The half of a table that makes no version: what it is, and the plans over it. `table.Table` adds the other half.

What a verb alone needs is imported by that verb: a process that looks one value up does not pay for the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError, NotReadableError
from .handle import Handle
from .scan.plan import Plan
from .scan.planning import PlannedScan
from .scan.request import ScanRequest, read_columns
from .stale import check_answers, sync_stale

if TYPE_CHECKING:
    import polars as pl
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from .advice.advise import Advice
    from .choices import Reader, Refresh, ScanMode
    from .column_layout import Layout
    from .progress import Progress
    from .scan.lake_dataset import LakeDataset
    from .scan.request import OrderBy
    from .status import Status
    from .verify import Finding


class ReadableTable:
    """A handle on one version of a table, by the verbs that read it.

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

    def _repr_html_(self) -> str:
        from .notebook import table_page

        return table_page(self.handle)

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
        """One row an instant up to this version: version, time, action, state, files_added, files_removed, ... Then one
        a transaction in flight (or dead, until `clean` gives it up): no version, and the state "inflight"."""
        from .shown import shown
        from .views import history_view

        in_flight = [] if self.handle.is_pinned else self.handle.timeline.markers.in_flight()
        instants = list(self.handle.timeline.history(self.version))
        ended = {instant["transaction"] for instant in instants}
        return shown(history_view(instants, [m for m in in_flight if m.transaction not in ended]))

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
        """How a column's values lie over the files, by the files' bounds: in how many of them a value lies, and what
        would help. A picture of it: `skipstone layout`.

        Raises SchemaError for a column that is not there, or whose type has no order.
        """
        from .column_layout import layout_of

        return layout_of(self.handle.snapshot, column, self.handle.strict)

    def verify(self, deep: bool = False) -> list[Finding]:
        """What is wrong, [] when sound: versions that were lost, runs that are damaged, files that are gone or others,
        files that are quarantined, files that hold columns which the table does not read. `deep` reads every instant,
        every byte of the index, and every footer."""
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

    def dataset(self) -> LakeDataset:
        """The version that the handle reads, as a pyarrow Dataset that plans each of its scans through the index.

        DuckDB and polars hand it the columns and the filters of their queries, which then skip what they need not read:

            lake = ss.open("lake/flights").dataset()
            duckdb.sql("SELECT dest FROM lake WHERE tailnum = 'N14228'")
            polars.scan_pyarrow_dataset(lake).filter(polars.col("tailnum") == "N14228").collect()
        """
        check_answers(self.handle)
        return Plan(PlannedScan(ScanRequest.of(self.handle))).dataset()

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
