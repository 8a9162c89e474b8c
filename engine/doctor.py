"""Checks of this environment and of a table: what is wrong, and what to do."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

import pyarrow as pa

from ..errors import NotATableError, NotReadableError, SkipstoneError, StorageError
from .handle import Handle
from .opening import open_handle
from .scan.steps import bytes_text
from .stale import changes_since_sync
from .state.timeline import now_us, storage_now_us
from .storage import Storage
from .storage.local import TEMPORARY_PREFIX
from .verify import verify
from .views import indexes_view

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*(?:>=\s*([\d.]+))?")
_EXTRA = re.compile(r"extra == ['\"](\w+)['\"]")
_LIBRARIES = {"cloud": "object stores", "duckdb": "WHERE clauses that only DuckDB reads", "polars": "polars frames"}
_LIBRARIES |= {"delta": "Delta tables", "iceberg": "Iceberg tables", "hudi": "Hudi tables", "spark": "Spark"}
_JAVA_MIN = 17
_SKEW_US_MAX = 60 * 1_000_000
_SHOWN_MAX = 20
_FOLDER = "timeline"  # a clean knows temporary files there


@dataclass(frozen=True)
class Check:
    """One check.

    name      what was checked
    status    "ok"; "note": may be intended; "warning": costs time, now or later; "problem": something fails
    detail    what was found
    remedy    what to do; empty if nothing
    """

    name: str
    status: str
    detail: str
    remedy: str = ""

    @property
    def is_finding(self) -> bool:
        """True for a warning or a problem."""
        return self.status in (WARNING, PROBLEM)


def doctor(
    location: str | os.PathLike[str] | None = None,
    *,
    index_path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> list[Check]:
    """Check the environment and, with a location, the table: versions of libraries, compiled kernels, Java; whether the
    storage supports commits, clocks, damage, files that indexes do not cover. This changes nothing, but writes a file
    with a temporary name to the storage and removes it.

    Args:
        location, index_path, storage_options: as for `open`.

    Returns:
        The checks, in order; `is_finding` is True for problems and warnings. A problem raises no error.
    """
    checks = [*_python(), *_libraries(), *_kernels(), *_java()]
    return checks if location is None else [*checks, *_table(location, index_path, storage_options)]


# -- the environment --------------------------------------------------------------------------------------------------


def _python() -> Iterator[Check]:
    yield Check("python", OK, ".".join(map(str, sys.version_info[:3])))
    try:
        yield Check("skipstone", OK, metadata.version("skipstone"))
    except metadata.PackageNotFoundError:
        yield Check("skipstone", NOTE, "not installed as a package: versions of libraries are not compared")


def _libraries() -> Iterator[Check]:
    """Check the libraries that Skipstone and its extras require."""
    try:
        requirements = metadata.requires("skipstone") or []
    except metadata.PackageNotFoundError:
        requirements = ["numpy", "pyarrow", "numba", "zstandard"]
    for requirement in requirements:
        extra = _EXTRA.search(requirement)
        if extra is not None and extra[1] not in _LIBRARIES:
            continue
        match = _REQUIREMENT.match(requirement)
        if match is not None and match[1] != "skipstone":
            yield _library(match[1], match[2], None if extra is None else extra[1])


def _library(name: str, minimum: str | None, extra: str | None) -> Check:
    install = f"pip install '{name}{f'>={minimum}' if minimum else ''}'" if extra is None else ""
    install = install or f"pip install 'skipstone[{extra}]'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if extra is None:
            return Check(name, PROBLEM, "not installed", install)
        return Check(name, NOTE, f"not installed: needed for {_LIBRARIES[extra]}", install)
    if minimum is not None and _numbers(version) < _numbers(minimum):
        return Check(name, PROBLEM if extra is None else WARNING, f"{version}, older than {minimum}", install)
    return Check(name, OK, version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _kernels() -> Iterator[Check]:
    """Check whether compiled code runs, and whether numba can cache it."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        yield Check("kernels", WARNING, "NUMBA_DISABLE_JIT is set: builds are slow", "unset NUMBA_DISABLE_JIT")
        return
    try:
        from ..base.lazy import load
        from ..bloom import SplitBlockFilter, kernels

        load("bloom.kernels")
        SplitBlockFilter.build(pa.array(range(100_000)), fpp=0.01)
    except Exception as error:  # of numba's or LLVM's own kinds; plain twins serve
        remedy = "pip install --force-reinstall numba llvmlite; until then builds take the slower plain path"
        yield Check("kernels", WARNING, f"no compiled code runs ({error})", remedy)
        return
    caches = [one.stats.cache_path for one in vars(kernels).values() if hasattr(one, "stats")]
    writable = [path for path in caches if path and os.access(path, os.W_OK | os.X_OK)]
    if writable:
        yield Check("kernels", OK, f"kept in {writable[0]}")
    else:
        yield Check("kernels", WARNING, "compiled again in each process: no folder can cache them", _CACHE_REMEDY)


_CACHE_REMEDY = "set NUMBA_CACHE_DIR to a folder that may be written"


def _java() -> Iterator[Check]:
    if importlib.util.find_spec("pyspark") is None:
        return
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    remedy = f"install Java {_JAVA_MIN} or newer, and point JAVA_HOME at it; only Spark needs it"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        yield Check("java", WARNING if home else NOTE, f"{java} does not run ({error})", remedy)
        return
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if match is None or int(match[1]) < _JAVA_MIN:
        yield Check("java", WARNING, f"{java} is {match[1] if match else 'of a version that is not known'}", remedy)
    else:
        yield Check("java", OK, f"{match[1]}: {java}")


# -- the table --------------------------------------------------------------------------------------------------------


def _table(
    location: str | os.PathLike[str], index_path: str | os.PathLike[str] | None, options: Mapping[str, str] | None
) -> Iterator[Check]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            handle = open_handle(location, index_path=index_path, storage_options=options)
        except NotATableError as error:
            yield Check("table", PROBLEM, str(error), f"skipstone create {os.fspath(location)}")
            return
        except SkipstoneError as error:
            copied = isinstance(error, NotReadableError)
            remedy = "skipstone adopt" if copied else "skipstone verify --deep"
            yield Check("table", PROBLEM, error.bare_message if copied else str(error), remedy)
            return
    try:
        yield Check("table", OK, _described(handle))
        yield from (Check("table", WARNING, str(one.message)) for one in caught)
        parts: list[tuple[str, Callable[[Handle], Iterator[Check]]]] = [
            ("storage", lambda one: _storage(one.index_storage)),
            ("clock", _clock),
            ("log", _log),
            ("files", _files),
            ("directory", _directory),
            ("indexes", _indexes),
        ]
        for name, part in parts:
            try:
                yield from part(handle)
            except SkipstoneError as error:
                yield Check(name, PROBLEM, str(error))
    finally:
        handle.close()


def _directory(handle: Handle) -> Iterator[Check]:
    """Check whether the directory is as the last sync saw it."""
    if handle.log is None:
        changes = changes_since_sync(handle)
        remedy = f"skipstone sync {handle.location}"
        yield Check("directory", WARNING, str(changes), remedy) if changes else Check("directory", OK, str(changes))


def _described(handle: Handle) -> str:
    totals = handle.snapshot.instant.totals
    size = bytes_text(totals["bytes"])
    return f"{handle.location} version {handle.version}: {totals['files']:,} files, {totals['rows']:,} rows, {size}"


def _storage(storage: Storage) -> Iterator[Check]:
    """Check that only one of two writers can put a file of one name: commits need that."""
    path = f"{_FOLDER}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    first, second = uuid.uuid4().bytes, uuid.uuid4().bytes
    try:
        is_first = storage.put_if_absent(path, first)
    except StorageError as error:
        remedy = "reading works; to commit, get write permission, or keep the index elsewhere: --index-path"
        yield Check("storage", WARNING, f"nothing can be written: {error}", remedy)
        return
    try:
        is_second = storage.put_if_absent(path, second)
        if is_first and not is_second and storage.read(path) == first:
            yield Check("storage", OK, f"{storage.uri}: conditional writes work")
        else:
            remedy = "never let two writers commit at the same time, or keep the index where conditional writes work"
            yield Check("storage", PROBLEM, f"{storage.uri}: two writers could both create the same file", remedy)
    finally:
        storage.delete(path)


def _clock(handle: Handle) -> Iterator[Check]:
    try:
        ahead_us = now_us() - storage_now_us(handle.index_storage)
    except StorageError:
        return  # named by `_storage`
    seconds = ahead_us / 1e6
    detail = f"this machine is {abs(seconds):,.1f} s {'ahead of' if seconds > 0 else 'behind'} the storage"
    if abs(ahead_us) > _SKEW_US_MAX:
        yield Check("clock", WARNING, detail, "set this machine's clock, by NTP")
    else:
        yield Check("clock", OK, detail)


def _log(handle: Handle) -> Iterator[Check]:
    tail = handle.snapshot.tail
    if tail is not None and (tail.added or tail.removed):
        detail = (
            f"the log has newer commits: {tail.added:,} files added, which no index covers, {tail.removed:,} removed"
        )
        yield Check("log", WARNING, detail, "skipstone sync commits that")


def _files(handle: Handle) -> Iterator[Check]:
    findings = verify(handle)
    for one in findings[:_SHOWN_MAX]:
        status = WARNING if one.kind in ("quarantined", "unread") else PROBLEM
        remedy = "skipstone sync tries it again, once it is repaired" if one.kind == "quarantined" else ""
        remedy = remedy or ("" if ";" in one.message or "()" in one.message else "skipstone verify --deep")
        yield Check(f"{one.kind} file", status, f"{one.path}: {one.message}", remedy)
    if len(findings) > _SHOWN_MAX:
        yield Check("files", PROBLEM, f"and {len(findings) - _SHOWN_MAX:,} findings more", "skipstone verify")
    if not findings:
        yield Check("files", OK, "index and files are as they were")


def _indexes(handle: Handle) -> Iterator[Check]:
    for row in indexes_view(handle.snapshot).to_pylist():
        lacking = row["files_total"] - row["files_covered"]
        name = row["name"] if row["kind"] in row["name"] else f"{row['kind']}({', '.join(row['columns'])})"
        size = bytes_text(row["size_bytes"])
        if lacking:
            detail = f"does not cover {lacking:,} of {row['files_total']:,} files, which every look-up reads"
            yield Check(name, WARNING, detail, "skipstone optimize, or index refresh")
        else:
            yield Check(name, OK, f"covers {row['files_total']:,} files, {size}")
