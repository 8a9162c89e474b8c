"""Folders that benchmarks make once and keep in .cache/bench/."""

from __future__ import annotations

import json
import os
import shutil
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import skipstone as ss


@dataclass(frozen=True)
class Made:
    """A folder that was made, whole."""

    folder: Path
    build_s: float
    size_bytes: int


def made(folder: Path, make: Callable[[Path], None], fingerprint: str = "") -> Made:
    """The folder that `make` fills, made where it is not there whole. Iceberg writes its own place into its files, so
    a folder is made where it stays; what makes it whole is `made.json`, written last."""
    done = folder / "made.json"
    wanted = {"place": str(folder), "fingerprint": fingerprint, "pyarrow": pa.__version__}
    if done.exists():
        told = json.loads(done.read_text(encoding="utf-8"))
        if {name: told[name] for name in wanted} == wanted:
            return Made(folder, told["build_s"], told["size_bytes"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.perf_counter()
    make(folder)
    build_s = time.perf_counter() - start
    size = size_bytes(folder)
    told = {**wanted, "build_s": build_s, "size_bytes": size}
    unfinished = folder / "made.json.tmp"
    unfinished.write_text(json.dumps(told), encoding="utf-8")
    os.replace(unfinished, done)
    return Made(folder, build_s, size)


def size_bytes(folder: Path) -> int:
    """The bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def code_fingerprint() -> str:
    """What changes with the code that writes our files: an index that other code wrote is made anew."""
    root = Path(ss.__file__).parent
    paths = [root / "arrays.py", root / "canon.py"]
    paths += sorted((root / "engine").rglob("*.py")) + sorted((root / "hfile_like").rglob("*.py"))
    checksum = 0
    for path in paths:
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return f"{checksum:08x}"
