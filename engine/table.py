"""A table: a handle on one version, and the verbs that make others.

A handle pins what it saw when it was opened; `refresh` moves it to the latest, and so does an action through it. A
handle on an older version reads, and refuses actions. What reads is in `readable.py`; each verb's work is in the module
that it imports.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import InvalidArgumentError, check_flags
from .readable import ReadableTable

if TYPE_CHECKING:
    from .choices import IndexKindName, Maintenance, NewColumns, NewTypes, ShardSize
    from .commit.alter import Added
    from .commit.distributed import DistributedTransaction
    from .commit.sync import SyncResult
    from .commit.transaction import Transaction
    from .progress import Progress
    from .rows_by_key.verbs import Change, WhenMatched, WhenNotMatched


class Table(ReadableTable):
    """A handle on one version of a table. Made by `create` and `open`; threads may read through one."""

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
        if key is not None and (not isinstance(key, str) or any("\ud800" <= c <= "\udfff" for c in key)):
            raise InvalidArgumentError(f"key= is a text, not {key!r}")

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
        progress: Progress | bool | None = None,
    ) -> int:
        """Builds an index over the live files and keeps it from then on. Returns the version made.

        Args:
            columns: a name, or several: each gets a filter of its own; statistics are kept together; of a secondary
                index they are the key, in their order: its first columns can be asked for without the others.
            kind: "bloom": which files and row groups may hold a value; "secondary": which rows hold it; "stats": what
                files and row groups span, from their footers.
            fpp: of a filter: how often a row group without the value may be read, from 1e-6 to 0.1 (default: 0.001).
                A filter over a file of several row groups has a rate of its own.
            maintain: "commit": what transactions write is indexed as it is written; "refresh": not even that. Files
                that are merely added, or synced, wait for `refresh_index` of a filter or a secondary index, and may
                match until then.
            shard_bytes: of statistics and of a secondary index: a run that grows beyond is cut in shards of about this
                size: a number, or "small" (8 MiB), "medium" (64 MiB, as where nothing is said), "large" (512 MiB).

        A build that takes long publishes what it has from time to time: killed, it goes on with `refresh_index`.

        Raises:
            SchemaError: no such column, or of a type that cannot be indexed. InvalidArgumentError: there already.
        """
        from .commit.indexing import create_index

        self.handle.check_latest()
        all_options = {"fpp": fpp, "shard_bytes": shard_bytes}
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
        from .shown import VersionResult, bytes_text

        instant, names = self.handle.instant, {columns} if isinstance(columns, str) else set(columns)
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
        went and recompute what their partitions span, runs are merged where that pays, old instants are archived.
        Readers of older versions are not disturbed. Returns the version; nothing to do makes none."""
        from .commit.indexing import optimize

        self.handle.check_latest()
        optimize(self.handle, _reported(progress))
        return self.version

    def clean(
        self,
        *,
        retain_versions: int = 10,
        min_age: dt.timedelta = dt.timedelta(hours=1),
        delete_data: bool = False,
        dry_run: bool = False,
        progress: Progress | bool | None = None,
    ) -> pa.Table:
        """Removes what only old versions name, and what transactions that died left behind.

        A version stays readable while it is one of the last `retain_versions`, or was the latest less than `min_age`
        ago, or a savepoint names it. A transaction of which nothing was heard for `min_age` is given up first: should
        it wake, it ends with CommitConflictError. Nothing to remove makes no version.

        Args:
            retain_versions: 1 or more.
            min_age: keep it longer than the longest scan: executors read the files of versions a little old. Ages are
                taken by the clock of the storage, not of this machine.
            delete_data: remove, too, the data files that no readable version names: those taken out of the table that
                lie on storage as they were, and those that dead transactions wrote. Otherwise no data file is touched.
            dry_run: only report.

        Returns:
            What is removed (or would be): kind ("data", "run", "task", "marker", "temporary"), path, size_bytes.
            Paths of data are relative to the table, the others to the index.

        Raises CorruptionError where the newest version was lost: what it named is not removed before `repair`.
        """
        from .commit.clean import clean

        check_flags(delete_data=delete_data, dry_run=dry_run)
        self.handle.check_latest()
        if delete_data:
            self.handle.check_owns_files()
        return clean(self.handle, retain_versions, min_age, delete_data, dry_run, _reported(progress))

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

        The files that contain such rows are written again without them, in one commit over the newest version, which
        keeps every index. Rows that others append meanwhile stay. The old files stay on storage for older versions;
        other readers of the directory see them until `clean(delete_data=True)`.

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
            InvalidArgumentError: the files belong to a Delta, Iceberg or Hudi log, or the handle is pinned.
        """
        from .rows_by_key.verbs import Options, check_own_files, delete

        check_own_files(self.handle)
        self._check_writes(key)
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
        from .rows_by_key.verbs import Options, check_own_files, update

        check_own_files(self.handle)
        self._check_writes(key)
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
        from .rows_by_key.verbs import Options, check_own_files, upsert

        check_own_files(self.handle)
        self._check_writes(key)
        check_flags(dry_run=dry_run)
        options = Options(key, dry_run, _reported(progress))
        return upsert(self.handle, rows, on, when_matched, when_not_matched, options)


def _reported(progress: Progress | bool | None) -> Progress | None:
    from .progress import progress_function

    return progress_function(progress)
