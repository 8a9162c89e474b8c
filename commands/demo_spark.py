"""The demo's third way: Skipstone in a Spark of its own, started quietly."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
}


class SparkMissingError(Exception):
    """Spark cannot run; the message says why, and what to do."""


class SparkWay:
    """Asks a running Spark."""

    def __init__(self, session: SparkSession):
        self._session = session

    def rows(self, path: str, where: str) -> pa.Table:
        """The rows that match, by way of Spark's executors."""
        from ..spark_adapter import scan
        from ..spark_adapter.spark_versions import collected

        return collected(scan(self._session, path, where))


@contextlib.contextmanager
def spark_way() -> Iterator[SparkWay]:
    """Skipstone in a local Spark, which is stopped at the end. Raises SparkMissingError where there is none to start.

    What its JVM says on stderr goes to a temporary file, whose end is shown where it does not start.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissingError("PySpark is not installed: pip install 'skipstone[spark]'")
    home = os.environ.get("JAVA_HOME")
    if shutil.which(os.path.join(home, "bin", "java") if home else "java") is None:
        raise SparkMissingError(
            "there is no Java: install one of version 17 or newer, or set JAVA_HOME; `make demo` does"
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory(prefix="skipstone-spark-", ignore_cleanup_errors=True) as folder:
        session = _started(folder)
        try:
            yield SparkWay(session)
        finally:
            session.stop()


def _started(folder: str) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    log = os.path.join(folder, "stderr")
    builder = SparkSession.builder.master("local[*]").appName("skipstone demo")
    for name, value in _OPTIONS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", folder).config(
        "spark.sql.warehouse.dir", os.path.join(folder, "tables")
    )
    try:
        with _stderr_to(log):
            return builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        with open(log, encoding="utf-8", errors="replace") as file:
            printed = file.read().strip().splitlines()
        raise SparkMissingError(f"Spark did not start: {printed[-1] if printed else error}") from error


@contextlib.contextmanager
def _stderr_to(path: str) -> Iterator[None]:
    """The JVM inherits the file descriptor when it is started, and keeps it."""
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    try:
        with open(path, "wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)
