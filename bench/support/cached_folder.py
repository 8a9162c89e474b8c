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
class CachedFolder:
    """A folder that is complete: what building it took, and its bytes."""

    folder: Path
    build_s: float
    size_bytes: int


def cached_folder(folder: Path, build: Callable[[Path], None], fingerprint: str = "") -> CachedFolder:
    """The folder that `build` fills, built where it is not complete. Iceberg writes its own place into its files, so
    a folder is built where it stays; `made.json`, written last, says that it is complete."""
    done = folder / "made.json"
    wanted = {"place": str(folder), "fingerprint": fingerprint, "pyarrow": pa.__version__}
    if done.exists():
        stored = json.loads(done.read_text(encoding="utf-8"))
        if {name: stored[name] for name in wanted} == wanted:
            return CachedFolder(folder, stored["build_s"], stored["size_bytes"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.perf_counter()
    build(folder)
    build_s = time.perf_counter() - start
    size = size_bytes(folder)
    document = {**wanted, "build_s": build_s, "size_bytes": size}
    unfinished = folder / "made.json.tmp"
    unfinished.write_text(json.dumps(document), encoding="utf-8")
    os.replace(unfinished, done)
    return CachedFolder(folder, build_s, size)


def size_bytes(folder: Path) -> int:
    """The bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def code_fingerprint() -> str:
    """What changes with the code that writes our files: an index that other code wrote is made anew."""
    root = Path(ss.__file__).parent
    paths = [root / "base/arrays.py", root / "base/canon.py"]
    paths += sorted((root / "engine").rglob("*.py")) + sorted((root / "hfile_like").rglob("*.py"))
    checksum = 0
    for path in paths:
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return f"{checksum:08x}"
