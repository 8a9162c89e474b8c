"""Which files an overwrite takes out: all that are live, or those of the partitions that were written; and whether
these are still the files that its input was read from.

Partitions are compared by their values. One that others wrote may be spelled in another way (`month=01` for 1, `%2f`
for `%2F`), and its rows are of the partition that is overwritten all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pyarrow as pa

from ...errors import CommitConflictError, InvalidArgumentError, NotATableError
from ..partitions import hive
from ..state import COMPLETED, Instant, Timeline
from ..state.snapshot import Snapshot


def live_files(snapshot: Snapshot, partition_ids: Sequence[int] | None = None) -> dict[int, str]:
    """file id -> path of the live files, of some partitions where they are given (ascending)."""
    if partition_ids is not None and not partition_ids:
        return {}
    files = snapshot.files(partition_ids, ["path"])
    return dict(zip(files.column("file_id").to_pylist(), files.column("path").to_pylist(), strict=True))


def same_partitions(snapshot: Snapshot, texts: Iterable[pa.Array | pa.ChunkedArray]) -> list[int]:
    """The ids, ascending, of the partitions with files that have the values of one of the texts."""
    schema = snapshot.instant.schema
    fields = [schema.field(name) for name in snapshot.instant.partitioning]
    wanted = pa.array(sorted({text for some in texts for text in some.to_pylist()}), pa.string())
    if not len(wanted):
        return []
    keys = set(_keys(hive.typed_columns(wanted, fields)))
    known = snapshot.partition_values()
    there = _keys([known[field.name] for field in fields])
    ids = snapshot.partitions().column("partition_id").to_pylist()
    return sorted(number for number, key in zip(ids, there, strict=True) if key in keys)


def read_instant(timeline: Timeline, base: Instant, version: int) -> Instant:
    """The instant of the version that an overwrite's input was read from, of a transaction that begins at `base`.

    Raises InvalidArgumentError for what is no version, or a later one than the base; CommitConflictError where it was
    cleaned, so that nobody can tell what changed since.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InvalidArgumentError(
            f"read_version= is a version of the table, a whole number from 1 on, not {version!r}"
        )
    if version > base.version:
        raise InvalidArgumentError(
            f"read_version= is {version}, and this transaction begins at version {base.version}; refresh() the table "
            "before it"
        )
    try:
        base.check_kept(version)
        return timeline.read(version)
    except NotATableError as error:
        raise CommitConflictError(
            f"{timeline.storage.uri}: version {version}, from which the input of this overwrite was read, is there no "
            f"more ({error}); read the table anew and decide again"
        ) from error


def check_unchanged(read: Snapshot, now: Snapshot, texts: Sequence[pa.Array | pa.ChunkedArray] | None) -> None:
    """Raises CommitConflictError where the files of two versions differ in the partitions of the texts (None: in any):
    one was added or taken out, or the commit that wrote it has another state."""
    then, there = _contents(read, texts), _contents(now, texts)
    changed = sorted({path for path, _ in (dict(then.items() ^ there.items())).values()})
    if changed:
        raise CommitConflictError(
            f"{changed[0]}: another commit changed what is overwritten since version {read.instant.version}, from "
            "which the input was read; read the table anew and decide again",
            paths=changed,
        )


def _contents(
    snapshot: Snapshot, texts: Sequence[pa.Array | pa.ChunkedArray] | None
) -> dict[int, tuple[str, str | None]]:
    """file id -> path, and the state of the commit that wrote the file."""
    partition_ids = None if texts is None else same_partitions(snapshot, texts)
    if partition_ids == []:
        return {}
    files = snapshot.files(partition_ids, ["path", "commit"])
    states = snapshot.instant.commit_states
    told = (
        (path, states.get(commit, COMPLETED))
        for path, commit in zip(*(files.column(c).to_pylist() for c in ("path", "commit")), strict=True)
    )
    return dict(zip(files.column("file_id").to_pylist(), told, strict=True))


def _keys(columns: Sequence[pa.Array]) -> list[tuple]:
    """One tuple a row, equal where SQL calls the values equal; null is one, and so is NaN."""
    return list(zip(*([_plain(v) for v in _comparable(c).to_pylist()] for c in columns), strict=True))


def _comparable(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _plain(value: object) -> object:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
