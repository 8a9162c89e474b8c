"""What `format("skipstone")` does besides, in a process where `register` was called.

Spark looks for a data source of Python in the active session of a thread when it saves, and a thread that Python starts
has none; and it finds out that a source is no stream only when the stream's query has started. PySpark has no place for
code of a source at these moments. So `register` wraps `format` of two of its classes, once in a process; for any other
format nothing changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .source import SkipstoneSource, no_stream_to_read
from .spark_versions import java_sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_wrapped: set[type] = set()


def watch_formats(spark: SparkSession) -> None:
    """From now on `df.write.format("skipstone")` makes its session the active one of a thread that has none, and
    `readStream.format("skipstone")` raises InvalidArgumentError."""
    if hasattr(spark, "_jsparkSession"):
        from pyspark.sql.readwriter import DataFrameWriter

        _before_format(DataFrameWriter, lambda writer: activate(writer._spark))
    _before_format(type(spark.readStream), _refuse_stream)


def activate(spark: Any) -> None:
    """Makes a session the active one of this thread, where the thread has none; Spark Connect needs none."""
    if hasattr(spark, "_jsparkSession"):
        sessions = java_sessions(spark)
        if not sessions.getActiveSession().isDefined():
            sessions.setActiveSession(spark._jsparkSession)


def _refuse_stream(reader: object) -> None:
    raise no_stream_to_read()


def _before_format(kind: Any, check: Callable[[Any], None]) -> None:
    if kind in _wrapped:
        return
    _wrapped.add(kind)
    inner = kind.format

    @functools.wraps(inner)
    def format_of(self: Any, source: str) -> Any:
        if isinstance(source, str) and source.lower() == SkipstoneSource.name():
            check(self)
        return inner(self, source)

    kind.format = format_of
