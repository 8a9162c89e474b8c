"""`view`: a temporary view that is planned anew, on the latest version, by each query of its name.

Spark keeps the plan of `CREATE TEMPORARY VIEW ... USING skipstone`, and with it the version, for as long as the view
exists. Of a view AS SELECT it keeps the text, and resolves that again in each query. So our view selects from a table
function that stands for an unresolved load (decision 29).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..engine.open import open_table
from ..engine.predicates import parse
from ..errors import InvalidArgumentError
from .column_tree import quoted
from .jobs import declared_slots
from .options import Request, encode_predicate
from .scanning import register
from .sessions import active, read_where
from .source import SkipstoneSource
from .spark_versions import check_spark
from .wire_types import wire_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def view(
    spark: SparkSession,
    name: str,
    path: str | os.PathLike[str],
    where: object = None,
    columns: Sequence[str] | None = None,
    *,
    index_path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Makes, or replaces, a temporary view of a session that reads the latest version of a table at each query.

        sks.view(spark, "flights", "lake/flights")
        spark.sql("SELECT count(*) FROM flights WHERE origin = 'JFK'")

    A DataFrame made of it (`spark.sql`, `spark.table`) stays with the version of that moment. A query that names the
    view twice plans it twice, and a commit may come between. The columns are those of now: call this again after some
    were added. Nothing can be inserted into it; `save` to the table's path.

    Args:
        name: of the view, as it stands.
        where, columns, index_path, storage_options: as in `scan`, but all of a Column or a text must be understood. Its
            meaning is fixed now, by the session's present settings.

    Raises:
        As `scan`. InvalidArgumentError over Spark Connect, where a view stays with one version.
    """
    check_spark("4.0", "view()")
    if not hasattr(spark, "_jsparkSession"):
        raise InvalidArgumentError(
            "over Spark Connect a view stays with the version that it was made at: make a DataFrame by scan() for each "
            "query, or the view anew, by scan(...).createOrReplaceTempView(name); or make a table of the catalog, "
            "CREATE TABLE t USING skipstone OPTIONS (path '...'), and the view AS SELECT * FROM t WITH (path = '...')"
        )
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        node = read_where(spark, where, table.schema)
        plan = table.scan(node, columns)
        plan.planning.check_evaluable()
        wire_schema(table.schema, plan.columns)  # raises for a type that Spark does not have
        request = Request(
            path=table.location,
            predicate=None if node is None else encode_predicate(parse(node)),
            columns=tuple(plan.columns),
            index_path=None if index_path is None else table.handle.index_storage.uri,
            parallelism=declared_slots(spark),
            storage_options=table.handle.storage_options,
        )
    register(spark)
    with active(spark):
        function = f"skipstone_view_{name.encode().hex()}"
        _define(spark, function, request)
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {quoted(name)} AS SELECT * FROM {function}()")


def _define(spark: Any, function: str, request: Request) -> None:
    """Makes a temporary table function, without arguments, that stands for an unresolved load.

    To Spark such a function is a Scala function from arguments to a plan. A Scala map with a default value is one, so
    no code of ours is needed in the JVM.
    """
    reader = spark.read.format(SkipstoneSource.name()).options(**request.to_options())
    unresolved = reader.load()._jdf.queryExecution().logical()
    try:
        functions = spark._jsparkSession.sessionState().tableFunctionRegistry()
        empty = getattr(getattr(spark._jvm, "scala.collection.immutable.Map$"), "MODULE$").empty()
        functions.createOrReplaceTempFunction(function, empty.withDefaultValue(unresolved), "scala_udf")
    except Exception as error:
        raise InvalidArgumentError(
            f"Spark {spark.version} takes no view that is planned anew ({error}); make a DataFrame by scan() for each "
            "query"
        ) from error
