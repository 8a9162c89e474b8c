"""The data source "skipstone" by its name alone: `spark.read.format("skipstone")` with no import and no `register()`.

Spark's driver looks once, at the first Python data source that a session requests, at every top-level module of its
workers' path whose name begins with `pyspark_`, and takes the class `DefaultSource` from it. So this package is
installed next to `skipstone`, not inside it. It imports no more than the source's own few modules, because it is
imported also for people who use other sources.

Spark lists modules by `pkgutil.iter_modules`, which sees folders, wheels and archives on the path, but not what an
editable install of setuptools maps elsewhere: there, and on Spark Connect clients whose server has no Skipstone,
`spark_adapter.register(spark)` makes the name known. A session knows the name of a source found here for good:
`register` then leaves it as it is.
"""

from __future__ import annotations

from skipstone.spark_adapter.source import SkipstoneSource as DefaultSource

__all__ = ["DefaultSource"]
