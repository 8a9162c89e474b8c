"""Folders that benchmarks create once and store in .cache/bench/."""

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
    """A complete folder, the time to build it, and its bytes."""

    folder: Path
    build_s: float
    size_bytes: int


def cached_folder(folder: Path, build: Callable[[Path], None], fingerprint: str = "") -> CachedFolder:
    """Return the folder that `build` fills; build it if it is not complete. Iceberg writes its own location into its
    files, so a folder is built at its final place; `made.json`, written last, marks it as complete."""
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
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def code_fingerprint() -> str:
    """Return a checksum of the code that writes Skipstone's files: an index of other code is built again."""
    root = Path(ss.__file__).parent
    paths = [root / "base/arrays.py", root / "base/canon.py"]
    paths += sorted((root / "engine").rglob("*.py")) + sorted((root / "hfile_like").rglob("*.py"))
    checksum = 0
    for path in paths:
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return f"{checksum:08x}"
