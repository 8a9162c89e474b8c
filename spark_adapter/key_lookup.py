"""`lookup`: the rows whose values in some columns are those of one of very many keys, as a DataFrame.

few keys of one column     a scan with IN: filters and statistics can prune by them
many keys                  the driver looks them up in the secondary index, and executors read the rows that it
                           returns; files that it does not cover are read as far as the range of the keys leaves
                           them, and executors compare their rows with the keys
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..engine.open import open_table
from ..engine.parquet.leaves import leaf_types, top_level
from ..engine.predicates import And, col, parse, top_columns
from ..engine.progress import Progress, progress_function
from ..engine.rows_by_key.verbs import key_names
from ..engine.scan.keys import key_set
from ..engine.scan.lookup import FEW_KEYS, Lookup
from ..engine.scan.lookup import lookup as planned_lookup
from ..engine.scan.request import ScanRequest
from ..errors import SchemaError
from .columns import quoted
from .jobs import batches_only, frame_of_parts, run_action
from .lookup_tasks import KeyRows
from .scanning import scan
from .sessions import check_frame, read_where
from .shares import pack
from .spark_versions import slots
from .wire_types import spark_schema, wire_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def lookup(
    spark: SparkSession,
    path: str | os.PathLike,
    keys: DataFrame,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    where: object = None,
    index_path: str | os.PathLike | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> DataFrame:
    """Return the rows of a table whose values in `on` are one of many keys: a left semi-join, by a secondary index of
    these columns if there is one. Each row is returned once, however often its key is given; a null matches nothing.

    The keys are computed now, and collected on the driver, which looks them up: they must fit
    `spark.driver.maxResultSize` (a million keys of 36 characters are 40 MB). Executors read the rows when an action
    runs. The DataFrame stays at the version that is the latest now.

    Args:
        path: the table's directory; executors must see it under the same name.
        keys: a DataFrame with columns of the names in `on`. Numbers of another type are compared as numbers,
            timestamps of another unit as instants (without a zone: UTC), and bytes with UUIDs; anything else must be
            of the column's type.
        on: names of columns of the table; fields of structs by dotted path, which is also their name in `keys`.
        columns: what to read (default: all), in this order.
        where: which of these rows, as for `scan`; each part must be understood. With few keys it is part of a scan;
            with many, it is tested on their rows and prunes nothing.
        index_path: the folder of the index, if it is not in the table.
        version: the version to read (default: the latest).
        storage_options: options of an object store, which are passed to the executors.
        progress: of the job that computes the keys, called as f(step, done, total), or True for a bar on stderr.

    Raises:
        NotATableError: there is no index, or no such version. SchemaError: a column that does not exist, keys of types
        that cannot be compared with the columns, or a float key that is the nearest double of several values of a wide
        decimal column. NotReadableError: files that only their own format's reader can read.
    """
    check_frame(keys, "lookup")
    names = list(key_names(on))
    for name in names:
        if name not in keys.columns:
            raise SchemaError(f"the keys have no column {name!r}; they have {', '.join(keys.columns)}")
    with open_table(path, version=version, index_path=index_path, storage_options=storage_options) as table:
        leaves = leaf_types(table.schema)
        for name in names:
            if name not in leaves:
                raise SchemaError(f"no column {name!r} to look keys up in; there are {', '.join(leaves)}")
        key_frame = keys.select(*[keys[quoted(name)].alias(f"k{i}") for i, name in enumerate(names)])
        condition = None if where is None else parse(read_where(spark, where, table.schema))
        plan = table.scan(condition, columns)
        plan.planning.check_evaluable()
        wire = wire_schema(table.schema, plan.columns)
        given = run_action(spark, key_frame.toArrow, "keys", progress_function(progress)).rename_columns(names)
        keyed = key_set(given, [leaves[name] for name in names])
        if len(names) == 1 and given.num_rows <= FEW_KEYS:
            among = parse(col(names[0]).is_in(given.column(0).drop_null().unique()))
            both = among if condition is None else And((among, condition))
            # The caller's version, not the one opened: only the latest is read with another format's log.
            return scan(
                spark, path, both, columns, index_path=index_path, version=version, storage_options=storage_options
            )
        tops = [*(top_level(table.schema, name) for name in names), *top_columns(plan.bound)]
        planning = planned_lookup(
            given, names, ScanRequest.of(table.handle, list(dict.fromkeys([*wire.names, *tops]))), keyed
        )
        keys_tested = None
        if isinstance(planning, Lookup):
            planning.compares_rows = False  # executors do
            keys_tested = keyed if planning.leaves_rows_to_compare else None
        tasks = planning.readable_tasks()
        if not tasks:
            return spark.createDataFrame([], spark_schema(wire))
        work = KeyRows(planning.context, keys_tested, None if condition is None else plan.bound, wire)
        parts = frame_of_parts(spark, pack(tasks, slots(spark)))
        return parts.mapInArrow(batches_only(work), spark_schema(wire))
