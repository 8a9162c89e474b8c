"""`create`, `create_index`, `refresh_index`, `optimize`: executors read footers and columns, the driver commits.

The driver lists files and deals them out. Each executor reads the footers, or the key columns, of its part and writes
task index files or runs. What comes back is where those lie, not what they hold, so the driver's memory stays small. A
task that is tried again, or runs twice, writes files of other names; the driver names those of one try, and a clean
removes the others. Nobody sees anything before the driver's commit: the same files, statistics and errors as by
`skipstone.create` and the methods of a table.

A large index is built in waves of about as long as a build by `Table` works before it publishes: each wave is a job,
and a version. A driver that is killed loses the current wave; `refresh_index` goes on from there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..engine.choices import IndexKindName, Maintenance
from ..engine.commit.indexing import create_index as create_index_here
from ..engine.commit.indexing import optimize as optimize_here
from ..engine.commit.indexing import refresh_index as refresh_index_here
from ..engine.create import create as create_here
from ..engine.open import open_table
from ..engine.progress import Progress, progress_function
from .builders import Executors, attach
from .jobs import described

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..engine.table import Table


@described("create")
def create(spark: SparkSession, path: str | os.PathLike, **options: Any) -> Table:
    """Indexes Parquet files in place, as `skipstone.create` does, with its arguments (`partitioning`, `files`,
    `columns`, `index_path`, `storage_options`, `progress`, ...): their footers are read by executors, who must see the
    table under the same name.

    With `source="delta"` or `"iceberg"`, whose logs hold what footers would say, and for a table that begins empty or
    whose files an Arrow table describes, the driver does it alone.

    Returns:
        The table, open on the driver.

    Raises:
        As `skipstone.create`.
    """
    return create_here(path, attach=partial(attach, spark), **options)


@described("create_index")
def create_index(
    spark: SparkSession,
    path: str | os.PathLike,
    columns: str | Sequence[str],
    kind: IndexKindName,
    *,
    maintain: Maintenance = "commit",
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> int:
    """As `Table.create_index`, built by executors, who must see the table under the same name. Returns the version.

    A large build publishes what it has about once a minute, each time a version; after one that was killed,
    `refresh_index` builds the rest.

    Args:
        kind: "bloom", "secondary" or "stats".
        progress: a function called as f(step, done, total or None), or True for a bar on stderr.
        options: those of the kind, as `fpp` and `shard_bytes`.

    Raises:
        As `Table.create_index`, and what executors met, by its own type.
    """
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        return create_index_here(
            table.handle,
            columns,
            kind,
            maintain=maintain,
            options=options,
            progress=progress_function(progress),
            builder=Executors(spark),
        )


@described("refresh_index")
def refresh_index(
    spark: SparkSession,
    path: str | os.PathLike,
    columns: str | Sequence[str],
    kind: IndexKindName,
    *,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> int:
    """As `Table.refresh_index`, built by executors: covers what an index lacks, as after a build that was killed.
    Returns the version; where nothing is to cover, no version is made."""
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        return refresh_index_here(
            table.handle, columns, kind, progress=progress_function(progress), builder=Executors(spark)
        )


@described("optimize")
def optimize(
    spark: SparkSession,
    path: str | os.PathLike,
    *,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> int:
    """As `Table.optimize`: executors, who must see the table under the same name, build what indexes lack, and the
    driver merges runs. Returns the version; where nothing is to do, no version is made."""
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        optimize_here(table.handle, progress_function(progress), Executors(spark))
        return table.version
