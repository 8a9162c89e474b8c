"""Tests of verbs, scans, types and Columns once more: on a standalone cluster, and over Spark Connect.

On the cluster the package is shipped as an archive (`addPyFile`, as `--py-files` does) to users without a home, who
compile kernels. The Connect server and its executors have it on their PYTHONPATH, and have no numba.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import spark_sessions
from example_counts import only_in_test_all
from spark_cluster import Cluster, connect_server, package_archive

TESTS = Path(__file__).parents[1]
# What needs neither a JVM in the process nor a separate session.
AGAIN = (
    "test_spark_verbs.py",
    "test_spark_scan.py::test_every_form_of_a_predicate",
    "test_spark_scan.py::test_load_by_name",
    "test_spark_scan.py::test_union_and_join_of_scans_with_different_predicates",
    "test_spark_types.py::test_types_and_values_are_sparks_own",
    "test_spark_columns.py::test_columns_that_only_the_residual_needs",
    "test_spark_versions.py::test_any_session_saves_with_the_version_that_was_read",
)
# What needs a driver that sees what Spark makes of a Column or a text.
OF_CLASSIC_SESSIONS = (
    "test_spark_types.py::test_predicates_on_types_mean_what_spark_means",
    "test_spark_columns.py::test_unknown_parts_prune_nothing_and_hide_no_row",
)
_TESTS_S_MAX = 900  # against a hang: alone, half a minute
NO_NUMBA = """
import pathlib
import sys


class NoNumba:
    def find_spec(self, name, path=None, target=None):
        if name in ("numba", "llvmlite"):
            pathlib.Path(__file__).with_name("asked-for-numba").touch()
            raise ImportError(name + " is not installed here")


sys.meta_path.insert(0, NoNumba())
"""


def _run_again(session: str, cluster: Cluster, folder: Path, tests: tuple[str, ...] = AGAIN) -> None:
    """Runs tests on another session: what fails there fails here."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(TESTS / "pytest.ini"), "--rootdir", str(TESTS)]
    arguments = ["-p", "no:cacheprovider", "--basetemp", str(folder / "again")]
    arguments += [str(TESTS / "spark" / name) for name in tests]
    environment = {**cluster.environment, "SKIPSTONE_SPARK": session, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    options = {"capture_output": True, "text": True, "timeout": _TESTS_S_MAX, "stdin": subprocess.DEVNULL}
    done = subprocess.run([*command, *arguments], env=environment, **options)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


@only_in_test_all
def test_queries_on_a_cluster(spark_cluster: Cluster, tmp_path: Path) -> None:
    archive = package_archive(tmp_path / "skipstone.zip")
    homeless = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "TMPDIR": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    options = {f"spark.executorEnv.{name}": value for name, value in homeless.items()}
    session = spark_sessions.described(spark_cluster.url, {**spark_cluster.options, **options}, archive)
    _run_again(session, spark_cluster, tmp_path, AGAIN + OF_CLASSIC_SESSIONS)
    kept = {path.name.partition(".")[0] for path in tmp_path.glob("skipstone-kernels-*/*/*.nbi")}
    assert "kernels" in kept, "executors had no use for compiled kernels, or nowhere to keep them"


@only_in_test_all  # by default Columns that a client builds without a server: test_spark_columns.py
def test_queries_over_connect(spark_cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason='Spark Connect needs more: pip install "pyspark[connect]"')
    with zipfile.ZipFile(package_archive(tmp_path / "skipstone.zip")) as archive:
        archive.extractall(tmp_path / "packages")
    (tmp_path / "packages" / "sitecustomize.py").write_text(NO_NUMBA)
    there = {"PYTHONPATH": str(tmp_path / "packages")}
    options = {"spark.executorEnv.PYTHONPATH": there["PYTHONPATH"]}
    with connect_server(spark_cluster, options, there) as url:
        _run_again(spark_sessions.described(url), spark_cluster, tmp_path)
    assert (tmp_path / "packages" / "asked-for-numba").exists(), "executors had no use for compiled kernels"
