"""Sessions of Spark for tests: of two local cores, of a cluster, of a Spark Connect server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from example_counts import is_thorough

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

# Small heaps, and no time for the best code, nor to verify Spark's: what a JVM does here is short.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
_SETTINGS |= {
    f"spark.sql.parquet.{kind}RebaseModeIn{way}": "CORRECTED"
    for kind in ("datetime", "int96")
    for way in ("Read", "Write")
}
if not is_thorough():  # code that Spark makes for a query, and a plan that it makes again, take longer than the query
    _SETTINGS |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    _SETTINGS |= {"spark.sql.adaptive.enabled": "false"}


def classic(master: str, workdir: Path, options: Mapping[str, str] | None = None) -> SparkSession:
    """A session with its own JVM, on `local[n]` or a cluster's URL. What Spark writes goes to `workdir`."""
    from pyspark.sql import SparkSession

    settings = {
        **_SETTINGS,
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(workdir / "warehouse"),
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -Dderby.system.home={workdir / 'derby'}",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **(options or {}),
    }
    return SparkSession.builder.master(master).appName("skipstone-tests").config(map=settings).getOrCreate()


def described(url: str, options: Mapping[str, str] | None = None, archive: Path | None = None) -> str:
    """The text that `elsewhere` reads.

    Args:
        url: a cluster's, spark://..., or a Spark Connect server's, sc://...
        options: settings of the session.
        archive: a zip of the package, to be shipped to executors.
    """
    return json.dumps({"url": url, "options": options or {}, "archive": None if archive is None else str(archive)})


def elsewhere(text: str, workdir: Path) -> SparkSession:
    """The session of a text of `described`, in a process that has none."""
    from pyspark.sql import SparkSession

    wanted = json.loads(text)
    url, options, archive = wanted["url"], wanted["options"], wanted["archive"]
    if url.startswith("sc://"):
        session = SparkSession.builder.remote(url).config(map={**_SETTINGS, **options}).getOrCreate()
        if archive is not None:
            session.addArtifacts(archive, pyfile=True)
        return session
    session = classic(url, workdir, options)
    if archive is not None:
        assert not any(_has_package(session)), "the workers know the package before it is shipped to them"
        session.sparkContext.addPyFile(archive)
        assert all(_has_package(session))
    return session


def _has_package(session: SparkSession) -> list[bool]:
    """For each of many tasks: whether its executor finds the package."""

    def found(_: int) -> bool:
        import importlib.util

        return importlib.util.find_spec("skipstone") is not None

    return session.sparkContext.parallelize(range(8), 8).map(found).collect()
