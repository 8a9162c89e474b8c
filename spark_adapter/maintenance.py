"""`create`, `create_index`, `refresh_index`, `optimize`, `sync`, `verify`, `clean`: the methods of a table, with the
work on many files done by executors (`executors`). Results and errors are those of the methods."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import pyarrow as pa

from ..engine.choices import IndexKindName, Maintenance, NewColumns, NewTypes, OnMisfit, ShardSize, TableSource
from ..engine.create import create as create_here
from ..engine.progress import Progress, progress_function
from .executors import Executors, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..engine.commit.sync import SyncResult
    from ..engine.table import Table
    from ..engine.verify import Finding

Path = str | os.PathLike[str]


class Places(TypedDict, total=False):
    """Where the index is, if not in the table, and what opens an object store."""

    index_path: Path | None
    storage_options: Mapping[str, str] | None


class Reported(Places, total=False):
    """`progress` is called as f(step, done, total); True shows a bar on stderr."""

    progress: Progress | bool | None


class SyncOptions(Reported, total=False):
    """As for `Table.sync`."""

    new_columns: NewColumns
    new_types: NewTypes
    refresh: bool
    dry_run: bool


class IndexOptions(Reported, total=False):
    """As for `Table.create_index`."""

    fpp: float | None
    maintain: Maintenance
    shard_bytes: int | ShardSize | None
    ignore_case: bool | None
    include: str | Sequence[str] | None


class CleanOptions(Reported, total=False):
    """As for `Table.clean`."""

    retain_versions: int
    min_age: dt.timedelta
    delete_data: bool
    dry_run: bool


class CreateOptions(Reported, total=False):
    """As for `skipstone.create`."""

    schema: pa.Schema | None
    partitioning: Literal["hive"] | str | Sequence[str] | pa.Schema | None
    source: TableSource | None
    files: Sequence[str] | pa.Table | None
    columns: Sequence[str] | None
    name: str | None
    catalog: Any
    on_misfit: OnMisfit
    ignore_deletes: bool


def create(spark: SparkSession, path: Path, **options: Unpack[CreateOptions]) -> Table:
    """Index Parquet files in place, as `skipstone.create` with its arguments. Executors read the footers.

    With `source="delta"` or `"iceberg"`, whose logs contain what footers would, and for a table that starts empty or
    whose files an Arrow table describes, the driver does it alone.

    Returns:
        The table, open on the driver.

    Raises:
        As `skipstone.create`.
    """
    return create_here(path, attach=Executors(spark).attach, **options)


def sync(spark: SparkSession, path: Path, **options: Unpack[SyncOptions]) -> SyncResult:
    """As `Table.sync`, with its arguments: the driver lists, and executors read the footers of many new files. With
    `refresh` they also build what indexes lack. The driver follows a log of another format."""
    with opened(spark, path, options) as (table, rest):
        return table.sync(**rest)


def create_index(
    spark: SparkSession, path: Path, columns: str | Sequence[str], kind: IndexKindName, **options: Unpack[IndexOptions]
) -> int:
    """As `Table.create_index`, with its arguments, built by executors. Return the version.

    A large build publishes what it has about once a minute, each time a version; after a build that was killed,
    `refresh_index` builds the rest.

    Raises:
        As `Table.create_index`, and errors of executors by their own type.
    """
    with opened(spark, path, options) as (table, rest):
        return table.create_index(columns, kind, **rest)


def refresh_index(
    spark: SparkSession, path: Path, columns: str | Sequence[str], kind: IndexKindName, **options: Unpack[Reported]
) -> int:
    """As `Table.refresh_index`: executors index the files that an index lacks, also after a build that was killed.
    Return the version; no version is created if the index lacks nothing."""
    with opened(spark, path, options) as (table, rest):
        return table.refresh_index(columns, kind, **rest)


def optimize(spark: SparkSession, path: Path, **options: Unpack[Reported]) -> int:
    """As `Table.optimize`: executors build what indexes lack, and the driver merges runs. Return the version; no
    version is created if there is nothing to do."""
    with opened(spark, path, options) as (table, rest):
        return table.optimize(**rest)


def verify(
    spark: SparkSession,
    path: Path,
    deep: bool = False,
    *,
    progress: Progress | bool | None = None,
    **places: Unpack[Places],
) -> list[Finding]:
    """As `Table.verify`: executors look at the data files, and with `deep` read their footers; the driver reads the
    index. Return what is wrong, in the order of `Table.verify`; [] if nothing is.

    Args:
        progress: called as f(step, done, total), or True for a bar on stderr.
        places: `index_path` and `storage_options`, as for `scan`.
    """
    with opened(spark, path, places) as (table, rest):
        table.handle.executors.progress = progress_function(progress)
        return table.verify(deep, **rest)


def clean(spark: SparkSession, path: Path, **options: Unpack[CleanOptions]) -> pa.Table:
    """As `Table.clean`, with its arguments; the driver does the work. Return what is removed (or would be): kind, path,
    size_bytes."""
    with opened(spark, path, options) as (table, rest):
        return table.clean(**rest)
