"""`save`: a DataFrame into a table, from any thread, with a check of the versions that it was read from.

An overwrite of rows that were read from an older version would remove concurrent appends. A plain save does not have
the version that its rows are from; `save` reads it from the DataFrame's plan.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..engine.choices import SaveMode
from ..engine.open import open_table
from ..engine.progress import Progress, progress_function
from ..errors import InvalidArgumentError, NotATableError
from . import catalyst
from .jobs import run_action
from .options import OVERWRITE_MODE, READ_VERSION, STORAGE_PREFIX
from .sessions import find_relations, register
from .source import SkipstoneSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MODES = ("append", "overwrite")


def save(
    frame: DataFrame,
    path: str | os.PathLike,
    mode: SaveMode = "append",
    *,
    read_version: int | None = None,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
    **options: object,
) -> None:
    """Save rows in one transaction, as `frame.write.format("skipstone").mode(mode).options(...).save(path)`, from any
    thread. An overwrite conflicts if others changed the files that it overwrites since the DataFrame was loaded.

        df = sks.scan(spark, "lake/flights")
        sks.save(df.where("dep_delay < 999"), "lake/flights", "overwrite")

    Args:
        path: the table's directory; if there is no table, it is created.
        mode: "append" or "overwrite".
        read_version: the version of this table from which the rows were computed. By default the least that the
            DataFrame's plan reads of this table. If the plan reads none (after a checkpoint or `lookup`), changes that
            others made before this save began are no conflict.
        index_path, storage_options: as in `scan`.
        progress: called as f(step, done, total) while Spark's tasks end, or True for a bar on stderr.
        options: `partitioning`, `key`, `partitionOverwriteMode`, `file_rows` and others, as of a plain save.

    Raises:
        CommitConflictError: another writer changed what is overwritten (with `partitionOverwriteMode="dynamic"`: the
        partitions that get rows; else every partition) since that version; the table is unchanged. SchemaError: columns
        that do not fit. InvalidArgumentError: bad options; an overwrite over Spark Connect without
        `read_version`. Other failures of a Spark job raise Spark's own error.
    """
    if mode not in _MODES:
        raise InvalidArgumentError(f'mode= is "append" or "overwrite", not {mode!r}')
    report = progress_function(progress)
    spark = frame.sparkSession
    register(spark)
    with catalyst.active(spark):
        if mode == "overwrite" and read_version is None:
            read_version = _read_version(frame, path, index_path, storage_options)
        texts = {name: str(value) for name, value in options.items()}
        texts |= {f"{STORAGE_PREFIX}{name}": value for name, value in (storage_options or {}).items()}
        if index_path is not None:
            texts["index_path"] = os.fspath(index_path)
        if read_version is not None:
            texts[READ_VERSION] = str(read_version)
        if not any(name.lower() == OVERWRITE_MODE.lower() for name in texts):
            texts[OVERWRITE_MODE] = str(spark.conf.get(f"spark.sql.sources.{OVERWRITE_MODE}"))

        def act() -> None:
            with catalyst.active(spark):  # in the thread of the action, too
                frame.write.format(SkipstoneSource.name()).mode(mode).options(**texts).save(os.fspath(path))

        run_action(spark, act, "rows", report)


def _read_version(frame: DataFrame, path: str | os.PathLike, index_path: Any, storage_options: Any) -> int | None:
    """The least version of a table that a DataFrame reads; None if it reads none of it."""
    try:
        with open_table(path, index_path=index_path, storage_options=storage_options) as table:
            table_id = table.handle.instant.table_id
    except NotATableError:
        return None  # the save will make it
    if not catalyst.is_classic(frame.sparkSession):
        raise InvalidArgumentError(
            "over Spark Connect it is not known which version this DataFrame reads: pass the "
            "version of this table that the rows were read from as read_version=, or its latest version if they were "
            "not read from it"
        )
    return min((each.version() for each in find_relations(frame) if each.table_id() == table_id), default=None)
