"""Adding, refreshing and dropping indexes, without a lock.

A build reads the files that were live when it began and publishes what it covers: files that others commit meanwhile
are in later segments, which it does not cover, so they may match until `refresh_index`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ... import canon
from ...arrays import from_numpy, to_numpy
from ...bloom import HashedValues, distinct, hash_array
from ...errors import CommitConflictError, CorruptionError, InvalidArgumentError, SchemaError, StorageError
from ..ahead import ahead
from ..indexes.coverage import is_covered
from ..indexes.filters import FilterRunWriter
from ..ingest.footers import leaf_types, open_parquet, prefetch, reading
from ..ingest.leaves import leaf_array, top_level
from ..ingest.sources import parquet_options
from ..ingest.task_filters import fine_rows, task_filter
from ..ingest.task_result import BASE
from ..manifest.writing import run_path
from ..progress import Progress
from ..scan.columns import ColumnInFiles, column_in_files
from ..timeline import Coverage, IndexState, Instant, Run, new_transaction_id
from .leftovers import Leftovers
from .publish import publish_definition, successor
from .stat_rows import first_stats
from .stats_index import built_stats

if TYPE_CHECKING:
    from ..table import Table

KINDS = ("bloom", "stats")
_THREADS = min(4, os.cpu_count() or 1)


def create_index(
    table: Table,
    columns: str | Sequence[str],
    kind: str,
    *,
    fpp: float,
    maintain: str,
    shard_bytes: int,
    progress: Progress | None,
) -> int:
    """See `Table.create_index`."""
    _check_kind(kind)
    if maintain not in ("commit", "refresh"):
        raise InvalidArgumentError(f"maintain is 'commit' or 'refresh', not {maintain!r}")
    if isinstance(fpp, bool) or not isinstance(fpp, (int, float)) or not 0 < fpp < 1:
        raise InvalidArgumentError(f"fpp is a probability above 0 and below 1, as 0.01, not {fpp!r}")
    base = table.instant
    names = _names(columns)
    if isinstance(shard_bytes, bool) or not isinstance(shard_bytes, int) or shard_bytes < 1:
        raise InvalidArgumentError(f"shard_bytes is a number of bytes, not {shard_bytes!r}")
    column_ids = [_column_id(base, name, kind) for name in names]
    for name, column_id in zip(names, column_ids, strict=True):
        if base.index_of(kind, column_id) is not None:
            raise InvalidArgumentError(f"{name!r} has a {kind} index already; refresh_index() covers what it lacks")
    transaction = new_transaction_id()
    leftovers = Leftovers()
    with table.timeline.markers.held(transaction, base.version, "index", lambda: leftovers.is_lost), leftovers:
        if kind == "stats":
            options = {"shard_bytes": shard_bytes}
            states = [IndexState(0, kind, tuple(sorted(column_ids)), options, maintain)]
        else:
            states = [IndexState(0, kind, (c,), {"fpp": float(fpp)}, maintain) for c in column_ids]
        built = [_built(table, state, transaction, progress, leftovers) for state in states]

        def following(latest: Instant) -> Instant:
            after = successor(latest, transaction, "index", created=[f"{kind}({n})" for n in names])
            for state, aggregates in built:
                if not set(after.columns.values()).issuperset(state.columns):
                    raise CommitConflictError(f"another writer dropped a column of {', '.join(names)} meanwhile")
                if any(after.index_of(kind, c) is not None for c in state.columns):
                    raise CommitConflictError(f"another writer made a {kind} index of {names[0]!r} meanwhile")
                number = after.next["index"]
                after = replace(after, next={**after.next, "index": number + 1})
                runs = (*state.runs, *(aggregates if latest.version == base.version else ()))
                coverage = state.coverage.with_segment(after.version)
                after = after.with_index(replace(state, id=number, runs=runs, coverage=coverage))
            return after

        table.move_to(publish_definition(table.timeline, base, transaction, following, leftovers))
    return table.version


def refresh_index(table: Table, columns: str | Sequence[str], kind: str, *, progress: Progress | None) -> int:
    """See `Table.refresh_index`."""
    _check_kind(kind)
    base = table.instant
    found = {index.id: index for name in _names(columns) for index in [_existing(base, name, kind)]}
    stale = [index for index in found.values() if _uncovered(table, index).num_rows or _is_in_doubt(table, index)]
    if not stale:
        return table.version
    transaction = new_transaction_id()
    leftovers = Leftovers()
    with table.timeline.markers.held(transaction, base.version, "index", lambda: leftovers.is_lost), leftovers:
        built = [_built(table, index, transaction, progress, leftovers) for index in stale]
        # Files that could not be read before, and cannot now, are no reason for a version.
        if not any(_gains(table, index, state) for index, (state, _) in zip(stale, built, strict=True)):
            leftovers.remove()
            return table.version

        def following(latest: Instant) -> Instant:
            after = successor(latest, transaction, "index", refreshed=[i.kind for i, _ in built])
            for state, aggregates in built:
                current = next((i for i in after.indexes if i.id == state.id), None)
                if current is None:
                    raise CommitConflictError("another writer dropped the index meanwhile")
                before = next(i for i in base.indexes if i.id == state.id)
                if latest.version == base.version:
                    state = replace(state, runs=(*state.runs, *aggregates))
                after = after.with_index(_joined(table, current, state, before))
            return after

        table.move_to(publish_definition(table.timeline, base, transaction, following, leftovers))
    return table.version


def _joined(table: Table, current: IndexState, built: IndexState, before: IndexState) -> IndexState:
    """An index as it is now, with what a build added to what was there `before`. Runs, segments and holes that others
    added meanwhile stay; holes that the build filled go. What others covered is no hole, though the build could not: it
    would be covered again, and counted twice in an aggregate."""
    files = table.committed.files()
    ids, segments = to_numpy(files.column("file_id")), to_numpy(files.column("segment"))
    lacked = ids[~is_covered(built.coverage, segments, ids) & ~is_covered(current.coverage, segments, ids)].tolist()
    later = [hole for hole in current.coverage.holes if hole not in before.coverage.holes]
    return replace(
        current,
        runs=(*current.runs, *(r for r in built.runs if r not in before.runs)),
        coverage=current.coverage.joined(built.coverage).with_holes((*((i, i) for i in lacked), *later)),
    )


def drop_index(table: Table, columns: str | Sequence[str], kind: str) -> int:
    """See `Table.drop_index`."""
    _check_kind(kind)
    base = table.instant
    gone = {(_existing(base, name, kind).id, base.columns[name]) for name in _names(columns)}
    transaction = new_transaction_id()

    def following(latest: Instant) -> Instant:
        after = successor(latest, transaction, "index", dropped=_names(columns))
        left = (replace(i, columns=tuple(c for c in i.columns if (i.id, c) not in gone)) for i in after.indexes)
        # The statistics that `create` made stay when their last column goes: they know where the fine ones lie.
        return replace(after, indexes=tuple(i for i in left if i.columns or i.id == first_stats(after).id))

    table.move_to(publish_definition(table.timeline, table.instant, transaction, following, Leftovers()))
    return table.version


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        known = ", ".join(map(repr, KINDS))
        raise InvalidArgumentError(f"index kind {kind!r} cannot be made by this version; it makes {known}")


def _names(columns: str | Sequence[str]) -> list[str]:
    if not isinstance(columns, (str, Sequence)) or not all(isinstance(name, str) for name in columns):
        raise InvalidArgumentError(f"columns are named by their names, not {columns!r}")
    names = [columns] if isinstance(columns, str) else list(dict.fromkeys(columns))
    if not names:
        raise InvalidArgumentError("an index needs at least one column")
    return names


def _column_id(instant: Instant, name: str, index_kind: str) -> int:
    if name in instant.partitioning:
        raise SchemaError(f"{name!r} is a partition column: its values prune without an index")
    kind = leaf_types(instant.schema).get(name)
    if kind is None or (index_kind == "bloom" and canon.hash_name(kind) is None):
        known = [p for p in leaf_types(instant.schema) if p not in instant.partitioning]
        raise SchemaError(f"no column {name!r} that can be indexed; there are {', '.join(known)}")
    return instant.columns[name]


def _existing(instant: Instant, name: str, kind: str) -> IndexState:
    found = instant.index_of(kind, _column_id(instant, name, kind))
    if found is None:
        raise InvalidArgumentError(f"{name!r} has no {kind} index; make one with create_index()")
    return found


def _uncovered(table: Table, index: IndexState) -> pa.Table:
    """The live base files that an index does not cover."""
    files = table.committed.files()
    ids, segments = files.column("file_id").to_numpy(), files.column("segment").to_numpy()
    is_base = to_numpy(pc.equal(files.column("kind"), BASE))
    return files.filter(from_numpy(~is_covered(index.coverage, segments, ids) & is_base))


def _gains(table: Table, before: IndexState, built: IndexState) -> bool:
    """True where a build covers a file that the index lacked, or takes it out of doubt."""
    return _is_in_doubt(table, before) or _uncovered(table, built).num_rows < _uncovered(table, before).num_rows


def _is_in_doubt(table: Table, index: IndexState) -> bool:
    """True for statistics that have an entry of every live file, though their coverage does not say so: it leaves out
    what commits did that came between, were it only to take files out."""
    is_whole = index.coverage.is_whole(table.version)
    return index.kind == "stats" and not is_whole and not _uncovered(table, index).num_rows


def _built(
    table: Table, index: IndexState, transaction: str, progress: Progress | None, leftovers: Leftovers
) -> tuple[IndexState, tuple[Run, ...]]:
    """(the index with more runs, over the live files that it lacked; runs that count only where no commit came since).
    Files that cannot be read stay holes."""
    if index.kind == "stats":
        return built_stats(table, index, transaction, progress, leftovers)
    return _built_filters(table, index, transaction, progress, leftovers), ()


def _built_filters(
    table: Table, index: IndexState, transaction: str, progress: Progress | None, leftovers: Leftovers
) -> IndexState:
    column = table.instant.path_of(index.columns[0])
    files = _uncovered(table, index)
    path = run_path(transaction, f"i{index.columns[0]}")
    holes: list[int] = []
    fpp = index.options["fpp"]
    leftovers.add(table.index_storage, path)
    with FilterRunWriter(table.index_storage, path, fpp) as writer:
        for ordinal, (file_id, hashed) in enumerate(_hashes(table, files, column)):
            if isinstance(hashed, Exception):
                holes.append(file_id)
                warnings.warn(f"not indexed, and read by every scan until it is: {hashed}", stacklevel=4)
            else:
                name, groups = hashed
                groups = groups or [np.empty(0, dtype=np.uint64)]  # a file without row groups holds no value
                fine = writer.write_fine(ordinal, fine_rows(groups, fpp, name), name)
                writer.add_task([(file_id, None, fine)], task_filter(groups, fpp, name))
            if progress:
                progress(f"bloom({column})", ordinal + 1, files.num_rows)
        run: Run = writer.finish((1, table.version))
    every = table.committed.files()
    holes += _no_base(every)
    coverage = Coverage.up_to(table.version)
    return replace(index, runs=(*index.runs, run), coverage=coverage.with_holes((h, h) for h in holes))


def _no_base(files: pa.Table) -> list[int]:
    """Files that only their format's reader can read: no filter speaks of them."""
    return files.column("file_id").filter(pc.not_equal(files.column("kind"), BASE)).to_pylist()


def _hashes(
    table: Table, files: pa.Table, column: str
) -> Iterator[tuple[int, tuple[str, list[np.ndarray]] | Exception]]:
    """Each file's distinct hashes by row group, in order, a bounded number of files ahead."""
    known = column_in_files(table.instant, column)
    assert known is not None  # else it could not be indexed
    rows = files.select(["path", "size_bytes", "modified_ns", "etag", "schema_id"]).to_pylist()

    def read(row: dict) -> tuple[str, list[np.ndarray]] | Exception:
        try:
            return _file_hashes(table, row, known)
        except (CorruptionError, StorageError, SchemaError) as error:
            return error

    yield from zip(files.column("file_id").to_pylist(), ahead(read, rows, _THREADS, "skipstone-build"), strict=True)


def _file_hashes(table: Table, row: dict, known: ColumnInFiles) -> tuple[str, list[np.ndarray]]:
    number = row["schema_id"]
    path, _ = known.located.get(number, (None, known.type))
    if path is None and number not in known.lacking:
        raise SchemaError(f"{row['path']}: where the column lies in it is not known")
    entry = table.storage.stat(row["path"])
    if not entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"]):
        raise StorageError(f"{row['path']}: overwritten since it was indexed; sync() the table")
    with open_parquet(table.storage, entry, **parquet_options(table.instant.source)) as file:
        groups = file.metadata.num_row_groups
        there = file.schema_arrow
        if path is None or top_level(table.instant.file_schemas[number].schema, path) not in there.names:
            missing = _hashed_default(known)
            return missing.name, [missing.present()] * groups
        hashes, name = [], canon.hash_name(known.type) or ""
        for group in range(groups):
            with reading(row["path"]):
                prefetch(file, group, [path])
                rows = file.read_row_group(group, columns=[path])
            hashed = hash_array(leaf_array(rows, path))
            name = hashed.name
            hashes.append(distinct(hashed.present()))
        return name, hashes


def _hashed_default(known: ColumnInFiles) -> HashedValues:
    """The one value of a column in files that lack it."""
    return hash_array(pa.nulls(1, known.type) if known.default is None else pa.repeat(known.default, 1))
