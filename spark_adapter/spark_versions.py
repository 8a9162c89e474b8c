"""The differences between versions of PySpark, 4.0 to 4.x. No other module checks the version.

Importing it raises ImportError if PySpark is older: it has no data sources in Python.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyspark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
_UNKNOWN_SLOTS = 8

if _VERSION < (4, 0):
    raise ImportError(
        f"skipstone.spark_adapter needs PySpark 4.0 or later, and this is PySpark {pyspark.__version__}; "
        'pip install "pyspark>=4.0"'
    )


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Spark's own Arrow form of a Spark schema, its instants in UTC. Raises Spark's own errors."""
    from pyspark.sql.pandas import types

    to_arrow_schema: Any = types.to_arrow_schema
    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # 4.2
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def context_of(spark: Any) -> Any:
    """Return the SparkContext of a classic session; None over Spark Connect."""
    return getattr(spark, "_sc", None)


def jobs_with_tag(context: Any, tag: str) -> list[int]:
    """Return the ids of the jobs that have a tag."""
    return list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))


def default_parallelism(spark: SparkSession) -> int | None:
    """Return how many tasks run at a time; None over Spark Connect, whose client does not see it."""
    context = context_of(spark)
    return None if context is None else max(1, context.defaultParallelism)


def slots(spark: SparkSession) -> int:
    """Return how many tasks run at a time; a guess over Spark Connect."""
    return default_parallelism(spark) or _UNKNOWN_SLOTS
