"""A standalone cluster of Spark for as long as a block lasts: a master, workers, executors in processes of their own.

All of it is what PySpark ships, on the loopback. The executors' Python is a separate virtual environment: it has the
libraries, and not the checkout that the tests import, so Skipstone must be shipped to it as users ship it. Each process
writes its log into the cluster's folder (executors: `work/`). What is started is killed by its id, with its children.

A Spark Connect server is one more application of the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy
from example_counts import is_thorough
from server_processes import die_with_parent, free_ports
from spark_sessions import JAVA_OPTIONS

REPOSITORY = Path(__file__).parents[2]
_START_S_MAX = 90.0
_WORKERS = 2 if is_thorough() else 1
_without_proxies = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Cluster:
    """A cluster that runs. `url` is its master's, `environment` what a driver is to be started with."""

    folder: Path
    url: str
    status_url: str
    environment: dict[str, str]
    workers: list[subprocess.Popen] = field(default_factory=list)
    _started: int = 0

    @property
    def python(self) -> str:
        """The executors' interpreter."""
        return self.environment["PYSPARK_PYTHON"]

    @property
    def options(self) -> dict[str, str]:
        """The settings of an application: one executor of one core on each worker."""
        return {
            "spark.cores.max": str(_WORKERS),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        }

    def alive(self) -> int:
        """How many workers the master knows."""
        with _without_proxies.open(self.status_url, timeout=5) as answer:
            return json.load(answer)["aliveworkers"]

    def start_worker(self) -> None:
        """One more worker. Returns when the master knows it."""
        expected = self.alive() + 1
        self._started += 1
        name = f"worker-{self._started}"
        arguments = ["--host", "127.0.0.1", "--cores", "4", "--memory", "3g", self.url]
        command = ["spark-class", "org.apache.spark.deploy.worker.Worker", *arguments]
        worker = _run(self.folder, name, command, self.environment)
        self.workers.append(worker)
        _wait(lambda: self.alive() >= expected, worker, self.folder / f"{name}.log")

    def kill_worker(self) -> None:
        """SIGKILL to the worker that has been there longest, and to its executors. Returns when the master has missed
        it."""
        expected = self.alive() - 1
        worker = self.workers.pop(0)
        _kill(worker)
        until = time.monotonic() + _START_S_MAX
        while self.alive() > expected and time.monotonic() < until:
            time.sleep(0.05)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """A master and its workers. Executors' interpreters know neither the checkout nor its environment's own paths."""
    port, status_port = free_ports(2)
    (folder / "conf").mkdir(parents=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYTHON", "PYSPARK_"))},
        "PYSPARK_PYTHON": _interpreter(folder / "python"),
        "SPARK_HOME": _spark_home(),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_PUBLIC_DNS": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
    }
    cluster = Cluster(folder, f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{status_port}/json/", environment)
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(status_port)]
    master = _run(folder, "master", ["spark-class", "org.apache.spark.deploy.master.Master", *arguments], environment)
    try:
        _wait(lambda: cluster.alive() == 0, master, folder / "master.log")
        for _ in range(_WORKERS):
            cluster.start_worker()
        yield cluster
    finally:
        for process in (*cluster.workers, master):
            _kill(process)


@contextlib.contextmanager
def connect_server(cluster: Cluster, options: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[str]:
    """A Spark Connect server whose executors are the cluster's; its URL. `options`: settings of Spark;
    `environment`: what the server's own processes see, in addition to the cluster's."""
    (port,) = free_ports(1)
    settings = {
        **cluster.options,
        **options,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # A killed JVM removes nothing.
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -Djava.io.tmpdir={cluster.folder}",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(cluster.folder / "connect-warehouse"),
        "spark.sql.artifact.isolation.enabled": "true",
    }
    program = ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    arguments = [*program, "--master", cluster.url, *(f"--conf={name}={value}" for name, value in settings.items())]
    memory = {"SPARK_DAEMON_MEMORY": "1g"}
    server = _run(cluster.folder, "connect", arguments, {**cluster.environment, **memory, **environment})

    def answers() -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True

    try:
        _wait(answers, server, cluster.folder / "connect.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        _kill(server)


def package_archive(path: Path) -> Path:
    """A zip of the package as it is installed, to be shipped to executors."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    folders = settings["tool"]["setuptools"]["package-dir"]
    with zipfile.ZipFile(path, "w") as archive:
        for package in settings["tool"]["setuptools"]["packages"]:
            top, *inner = package.split(".")
            for module in sorted(REPOSITORY.joinpath(folders[top], *inner).glob("*.py*")):
                archive.write(module, "/".join([top, *inner, module.name]))
    return path


def _spark_home() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


def _interpreter(folder: Path) -> str:
    """An environment with the libraries of this one and not what is installed here as a checkout: a folder that a
    .pth file names is searched, and its own .pth files are not read."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(str(Path(numpy.__file__).parent.parent))
    return str(folder / "bin" / "python")


def _run(folder: Path, name: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen:
    """One of Spark's programs, in a separate process group with all that it starts."""
    program = Path(environment["SPARK_HOME"]) / "bin" / command[0]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [str(program), *command[1:]],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _wait(is_ready, process: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + _START_S_MAX
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError, ValueError):  # no answer yet, or an empty one
            if is_ready():
                return
        time.sleep(0.1)
    raise RuntimeError(f"{log.stem} of Spark did not start:\n{log.read_text(errors='replace')[-4000:]}")


def _kill(process: subprocess.Popen) -> None:
    """The process and its group; a worker's executors are of its group, and their Python ends with them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":  # to try something by hand: prints the URLs, ends with Ctrl-D
    with running(Path(sys.argv[1])) as one, connect_server(one, {}, {}) as remote_url:
        print(one.url, remote_url, one.python, flush=True)
        sys.stdin.read()
