"""Rows changed by key: delete 40 keys, upsert 10,000 and 1,000,000, half of them new, in 30 million rows of 200 files.

The 40 keys are in four of the files, or in any. Keys of an upsert are in all of them. Ours has a secondary index of the
key, which covers the new files; it is part of the time. deltalake merges, pyiceberg deletes and upserts. The
floor is DuckDB, which writes all files again, without a commit. Each runs in its own process over a fresh copy
(hard links, because no contender changes a file in its place), and is killed after 300 s. A peer that took a quarter of
that gets no task of more keys. What a process took at most of memory is in the notes. ROWS=1000000 FILES=20 tries it in
a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

from .support.cached_folder import cached_folder, code_fingerprint
from .support.data import CACHE
from .support.harness import Bench

ROWS, FILES = int(os.environ.get("ROWS", 30_000_000)), int(os.environ.get("FILES", 200))
LIMIT_S, MEMORY_MAX = 300, 500_000_000
# old keys, new keys, and in how many of the files the old ones are
TASKS = {
    "delete 40 keys of four files": (40, 0, 4),
    "delete 40 keys of any files": (40, 0, FILES),
    "upsert 10,000 keys": (5_000, 5_000, FILES),
    "upsert 1,000,000 keys": (500_000, 500_000, FILES),
}
_DUCKDB = "DuckDB writes all again"
_ROW = (
    "SELECT md5(i::VARCHAR) AS id, hash(i) % 1000000 AS account, TIMESTAMP '2024-01-01' + to_seconds(i) AS ts, "
    "(hash(i + 1) % 100000) / 100.0 AS amount, "
    "['open', 'closed', 'void', 'new'][(1 + hash(i + 2) % 4)::BIGINT] AS status, "
    "'note ' || hash(i + 3) % 1000000000 AS note, {version} AS version FROM {numbers}"
)
_COLUMNS = "account::BIGINT AS account, amount::DOUBLE AS amount, version::INTEGER AS version"


# -- tables, made once -------------------------------------------------------------------------------------------------


def _rows(numbers: str, version: int) -> str:
    return f"SELECT * REPLACE ({_COLUMNS}) FROM ({_ROW.format(numbers=numbers, version=version)})"


def _write_files(folder: Path) -> None:
    connection = duckdb.connect()
    for file in range(FILES):
        numbers = f"range({ROWS * file // FILES}, {ROWS * (file + 1) // FILES}) t(i)"
        connection.execute(f"COPY ({_rows(numbers, 0)}) TO '{folder}/part-{file:05d}.parquet' (FORMAT parquet)")


def _write_keys(folder: Path) -> None:
    """The rows of each task."""
    connection = duckdb.connect()
    for task, (old, new, files) in TASKS.items():
        step = max(1, ROWS * files // FILES // old)
        numbers = (
            f"(SELECT (i * {step} + 7) % {ROWS} AS i FROM range({min(old, ROWS)}) t(i) UNION ALL "
            f"SELECT i + {ROWS} FROM range({new}) t(i))"
        )
        connection.execute(f"COPY ({_rows(numbers, 1)}) TO '{_keys_of(folder, task)}' (FORMAT parquet)")


def _keys_of(folder: Path, task: str) -> Path:
    return folder / f"{task.replace(' ', '-')}.parquet"


def _link(source: Path, folder: Path) -> None:
    for path in source.glob("*.parquet"):
        os.link(path, folder / path.name)


def _ours(source: Path, folder: Path) -> None:
    _link(source, folder)
    ss.create(folder).create_index("id", kind="secondary")


def _delta(source: Path, folder: Path) -> None:
    import deltalake

    _link(source, folder)
    deltalake.convert_to_deltalake(str(folder))


def _iceberg(source: Path, folder: Path) -> None:
    (folder / "data").mkdir()
    _link(source, folder / "data")
    paths = sorted(str(path) for path in (folder / "data").glob("*.parquet"))
    catalog = _catalog(folder)
    catalog.create_namespace("bench")
    options = {"write.parquet.compression-codec": "snappy"}
    table = catalog.create_table("bench.rows", pq.read_schema(paths[0]), properties=options)
    table.add_files(paths)


def _catalog(folder: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


# -- contenders: (folder, whether to delete, Parquet file of the rows) -> a note, the files of the table afterwards ----

Changed = Callable[[], list[str]]


def _change_ours(folder: Path, deletes: bool, keys: Path) -> tuple[str, Changed]:
    table, rows = ss.open(folder), pq.read_table(keys)
    if deletes:
        done = table.delete(ss.col("id").is_in(rows.column("id").to_pylist()))
    else:
        done = table.upsert(rows, on="id")
    note = f"{done.files_rewritten} files written again"
    return note, lambda: [f"{folder}/{path}" for path in table.files().column("path").to_pylist()]


def _change_by_duckdb(folder: Path, deletes: bool, keys: Path) -> tuple[str, Changed]:
    connection, out = duckdb.connect(), folder / "again"
    connection.execute(f"SET temp_directory = '{folder}/spill'")
    kept = f"SELECT t.* FROM read_parquet('{folder}/*.parquet') t ANTI JOIN read_parquet('{keys}') k ON t.id = k.id"
    inserted = f" UNION ALL SELECT * FROM read_parquet('{keys}')" if not deletes else ""
    connection.execute(f"COPY ({kept}{inserted}) TO '{out}' (FORMAT parquet, PER_THREAD_OUTPUT)")
    return "all files", lambda: [str(path) for path in out.glob("*.parquet")]


def _change_by_deltalake(folder: Path, deletes: bool, keys: Path) -> tuple[str, Changed]:
    from deltalake import DeltaTable

    table, rows = DeltaTable(str(folder)), pq.read_table(keys)
    if deletes:
        done = table.delete(f"id IN ({', '.join(map(repr, rows.column('id').to_pylist()))})")
    else:
        merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        done = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    removed = done.get("num_removed_files", done.get("num_target_files_removed"))
    return f"{removed} files written again", table.file_uris


def _change_by_pyiceberg(folder: Path, deletes: bool, keys: Path) -> tuple[str, Changed]:
    from pyiceberg.expressions import In

    table, rows = _catalog(folder).load_table("bench.rows"), pq.read_table(keys)
    if deletes:
        table.delete(In("id", set(rows.column("id").to_pylist())))
    else:
        table.upsert(rows, join_cols=["id"])
    files = lambda: [str(path).removeprefix("file://") for path in table.inspect.files()["file_path"].to_pylist()]  # noqa: E731
    return "", files


_CONTENDERS = {
    "skipstone": (_ours, _change_ours),
    _DUCKDB: (lambda source, folder: _link(source, folder), _change_by_duckdb),
    "deltalake": (_delta, _change_by_deltalake),
    "pyiceberg": (_iceberg, _change_by_pyiceberg),
}


# -- one run in its own process ----------------------------------------------------------------------------------------


def child(contender: str, folder: str, deletes: bool, keys: str) -> None:
    """Prints what one change took, and what the table is then, as JSON."""
    import_peers = {"deltalake": "deltalake", "pyiceberg": "pyiceberg.table"}
    __import__(import_peers.get(contender, "skipstone.engine.table"))
    __import__("pyarrow.dataset")  # what reads the keys, and loads pandas: half a second that is no part of a change
    start, cpu_start = time.perf_counter(), time.process_time()
    note, files_after = _CONTENDERS[contender][1](Path(folder), deletes, Path(keys))
    took_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    # The peak that rusage reports would begin at that of the parent.
    memory = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    answer = duckdb.sql(f"SELECT count(*), sum(version), sum(account) FROM read_parquet({files_after()})").fetchall()
    result = {
        "s": took_s,
        "cpu_s": cpu_s,
        "memory": memory,
        "note": note,
        "answer": [str(value) for value in answer[0]],
    }
    print(json.dumps(result))


def _run(contender: str, folder: Path, deletes: bool, keys: Path) -> dict[str, Any]:
    pristine = folder.with_name(f"{folder.name}-pristine")
    if not pristine.exists():
        shutil.copytree(folder, pristine, copy_function=os.link)
    shutil.rmtree(folder)
    shutil.copytree(pristine, folder, copy_function=_copy_or_link)
    code = f"from bench.rows_by_key import child; child({contender!r}, {str(folder)!r}, {deletes}, {str(keys)!r})"
    root = Path(__file__).parents[1]
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=LIMIT_S + 30, check=False
        )
    except subprocess.TimeoutExpired:
        return {"s": float(LIMIT_S), "note": f"more than {LIMIT_S} s: killed"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1][:120] if done.stderr.strip() else f"exit code {done.returncode}"
        return {"s": None, "note": f"failed: {last}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def _copy_or_link(source: str, target: str) -> None:
    """A database is changed in its place; nothing else is."""
    (shutil.copy2 if source.endswith(".db") else os.link)(source, target)


def main() -> None:
    root = CACHE / f"rows-by-key-{ROWS}-{FILES}"
    source = cached_folder(root / "files", _write_files).folder
    keys = cached_folder(root / "keys", _write_keys, str(TASKS)).folder
    bench = Bench(
        "rows_by_key",
        f"Rows changed by key: {ROWS:,} rows in {FILES} files",
        libraries=["duckdb", "deltalake", "pyiceberg"],
    )
    too_slow: dict[tuple[str, bool], str] = {}
    targets = ["## Targets", "", "| target | measured | |", "| --- | ---: | --- |"]
    for task, (old, new, _) in TASKS.items():
        if 2 * (old + new) > ROWS:
            continue
        deletes = not new
        results: dict[str, dict[str, Any]] = {}
        answers = {}
        for contender, (build, _) in _CONTENDERS.items():
            if kept_off := too_slow.get((contender, deletes)):
                bench.measured(task, contender, [], kind="peer", note=f"not run: {kept_off}")
                continue
            folder = _table_folder(root, contender, source, build)
            result = results[contender] = _run(contender, folder, deletes, _keys_of(keys, task))
            if contender in ("deltalake", "pyiceberg") and (result["s"] or LIMIT_S) > LIMIT_S / 4:
                too_slow[contender, deletes] = f"{task} took more than {LIMIT_S // 4} s"
            if "answer" in result:
                answers[contender] = result["answer"]
                cost = f"{result['memory'] / 1e6:,.0f} MB at most, {result['cpu_s']:.3g} s of the processor"
                result["note"] = f"{cost}; {result['note']}".rstrip("; ")
            kind: Any = {"skipstone": "us", _DUCKDB: "floor"}.get(contender, "peer")
            bench.measured(
                task, contender, [] if result["s"] is None else [result["s"]], kind=kind, note=result["note"]
            )
            print(task, contender, result, flush=True)
        if len({tuple(answer) for answer in answers.values()}) > 1:
            raise SystemExit(f"{task}: the tables differ: {answers}")
        targets += _verdicts(task, deletes, results)
    bench.report(targets)


def _table_folder(root: Path, contender: str, source: Path, build: Callable[[Path, Path], None]) -> Path:
    folder = root / contender.replace(" ", "-")
    mark = root / f"{folder.name}.made"
    made_by = f"{code_fingerprint() if contender == 'skipstone' else ''}|{pa.__version__}"
    if not mark.exists() or mark.read_text(encoding="utf-8") != made_by:
        for old in (folder, folder.with_name(f"{folder.name}-pristine")):
            shutil.rmtree(old, ignore_errors=True)
        folder.mkdir(parents=True)
        build(source, folder)
        mark.write_text(made_by, encoding="utf-8")
    return folder


def _verdicts(task: str, deletes: bool, results: dict[str, dict[str, Any]]) -> list[str]:
    ours = results["skipstone"]
    times = {name: result["s"] for name, result in results.items() if result["s"] is not None}
    won = lambda is_met: "won" if is_met else "**lost**"  # noqa: E731
    if deletes:
        ratio = ours["s"] / times[_DUCKDB]
        return [
            f"| {task}: at most 0.1 of writing all again | {ratio:.3g} | {won(ratio <= 0.1)} |",
            f"| {task}: at most 500 MB | {ours['memory'] / 1e6:,.0f} MB | {won(ours['memory'] <= MEMORY_MAX)} |",
        ]
    best = min((name for name in times if name not in ("skipstone", _DUCKDB)), key=times.__getitem__)
    ratio = ours["s"] / times[best]
    return [f"| {task}: less time than the best peer, {best} | {ratio:.3g} | {won(ratio <= 1)} |"]


if __name__ == "__main__":
    main()
