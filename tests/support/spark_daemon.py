"""PySpark's daemon of Python workers. It imports what they need before it forks them, so a worker begins immediately,
not after a second of imports. Spark starts more than a hundred of them in these tests.

The setting spark.python.daemon.module is used for the workers of tasks, not for those that plan, write or commit, so
this replaces the interpreter. That an executor finds and loads everything by itself is test_spark_cluster.py's.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from loaded_modules import load_all

LOADED = (
    "pyspark.worker",
    *(f"pyspark.sql.worker.{name}_data_source" for name in ("create", "write_into")),
    "pyspark.sql.worker.plan_data_source_read",
)


def environment() -> dict[str, str]:
    """What Spark is to be started with."""
    program = Path(__file__).with_name("spark_python")
    if not hasattr(os, "fork") or not os.access(program, os.X_OK):  # without fork Spark has no daemon
        return {"PYSPARK_PYTHON": sys.executable}
    return {"PYSPARK_PYTHON": str(program), "SKIPSTONE_TEST_PYTHON": sys.executable}


def main() -> None:
    if sys.argv[1:3] != ["-m", "pyspark.daemon"]:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    sys.path[0] = os.getcwd()  # as for -m
    sys.argv[1:3] = []

    load_all(*LOADED)
    from pyspark.daemon import manager

    gc.freeze()  # after each piece of work a worker collects garbage: not among all these modules
    manager()


if __name__ == "__main__":
    main()
