"""Importing is cheap, and there is one copy of the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone

REPOSITORY = Path(__file__).parents[2]
LATE = {"numba", "llvmlite", "pyspark", "py4j", "rich", "duckdb", "obstore", "pandas"}


# Of ours, in a process that looks one value up: by statistics, and by a filter. Each costs about half a millisecond.
BY_STATISTICS_MAX, BY_FILTER_MAX = 100, 108


def _modules_of(code: str) -> list[str]:
    """The modules that a fresh process holds after `code`."""
    code += "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd="/"
    )
    return json.loads(process.stdout.splitlines()[-1])


def _loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh process holds after `code`."""
    return {name.partition(".")[0] for name in _modules_of(code)}


def test_import_is_lazy() -> None:
    loaded = _loaded_by("import skipstone")
    assert "skipstone" in loaded
    assert loaded & LATE == set()


def test_import_of_each_room_is_lazy() -> None:
    """A small look-up imports the rooms: none of them may pull in a compiler, a parser or a cloud client."""
    rooms = [
        "errors",
        "base.canon",
        "bloom",
        "hfile_like",
        "engine",
        "engine.predicates",
        "engine.storage",
        "engine.scan",
    ]
    loaded = _loaded_by("import " + ", ".join(f"skipstone.{room}" for room in rooms))
    assert loaded & LATE == set()


def test_a_row_of_a_large_table_loads_no_reader_for_many(tmp_path: Path) -> None:
    """All of the table would be read by polars; loading that takes longer than finding the row."""
    zeros = pa.array(np.zeros(3_000_000, dtype=np.int8))
    pq.write_table(pa.table({f"c{i}": zeros for i in range(10)}), tmp_path / "many.parquet")
    pq.write_table(pa.table({f"c{i}": pa.array([1], pa.int8()) for i in range(10)}), tmp_path / "one.parquet")
    skipstone.create(tmp_path)
    ask = f"import skipstone as ss; rows = ss.open({str(tmp_path)!r}).scan(ss.col('c0') == 1).to_table()"
    assert "polars" not in _loaded_by(f"{ask}; assert rows.num_rows == 1")


@pytest.fixture(scope="module")
def indexed_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partitioned table of 4 files with 2 row groups each, and a bloom index on an uuid-like text."""
    root = tmp_path_factory.mktemp("lake")
    for day in (1, 2):
        for part in (1, 2):
            folder = root / f"day={day}"
            folder.mkdir(exist_ok=True)
            rows = [f"{day}-{part}-{i}" for i in range(2_000)]
            table = pa.table({"id": rows, "n": range(2_000)})
            pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=1_000)
    for folder in (root / "day=1", root / "day=2", root):  # a folder that is younger than two seconds is listed again
        os.utime(folder, (1_700_000_000, 1_700_000_000))
    skipstone.create(root).create_index("id", kind="bloom")
    return root


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "where, rows",
    [
        ("ss.col('id') == '1-2-1234'", 1),
        ("ss.col('id') == '1-2-none'", 0),
        ("(ss.col('day') == 2) & (ss.col('id') == '2-1-7')", 1),
        ("[('id', '=', '1-2-1234')]", 1),
        ("\"day = 2 AND id IN ('2-1-7', '2-1-none')\"", 1),
    ],
)
def test_a_cold_look_up_loads_nothing_slow(indexed_lake: Path, where: str, rows: int) -> None:
    """numba, pandas (which pyarrow's own conversions import) and Spark each cost more than the look-up. The package
    around DuckDB's compiled module, which reads SQL text, costs half as much as pyarrow."""
    look_up = f"import skipstone as ss\nfound = ss.open({str(indexed_lake)!r}).scan({where}).to_table()"
    loaded = _loaded_by(f"{look_up}\nassert found.num_rows == {rows}, found.num_rows")
    assert loaded & LATE == set()
    assert ("_duckdb" in loaded) == where.startswith('"')


@pytest.mark.parametrize(
    "call",
    [
        "lookup(['1-2-1234', '2-1-7'], on='id').to_table().num_rows",
        "lookup([1234], on='n').count()",
        "sql(\"SELECT count(*) FROM self WHERE id = '1-2-1234'\").fetchall()",
    ],
)
def test_keys_in_a_list_and_rows_of_a_query_load_no_pandas(indexed_lake: Path, call: str) -> None:
    loaded = _loaded_by(f"import skipstone as ss\nassert ss.open({str(indexed_lake)!r}).{call}")
    assert loaded & {"pandas", "numba", "pyspark"} == set()


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "where, rows, modules_max, rooms_left_out",
    [
        ("ss.col('n') == 7", 4, BY_STATISTICS_MAX, ("bloom.", "engine.indexes.bloom.format")),
        ("ss.col('id') == '1-2-1234'", 1, BY_FILTER_MAX, ("bloom.group", "bloom.sizing", "bloom.filter")),
    ],
)
def test_a_cold_look_up_loads_few_modules(
    indexed_lake: Path, where: str, rows: int, modules_max: int, rooms_left_out: tuple[str, ...]
) -> None:
    """No writer, no commit, no view for people, no index that the predicate does not ask."""
    code = f"import skipstone as ss\nassert len(ss.open({str(indexed_lake)!r}).scan({where}).to_table()) == {rows}"
    ours = [name for name in _modules_of(code) if name.partition(".")[0] == "skipstone"]
    rooms = ("engine.commit", "engine.tasks", "engine.views", "engine.indexes.secondary", "hfile_like.writer")
    left_out = (*rooms, *rooms_left_out)
    assert [name for name in ours if name.removeprefix("skipstone.").startswith(left_out)] == []
    assert len(ours) <= modules_max, f"{len(ours)} modules: {', '.join(ours)}"


def test_a_command_loads_its_own_verb_alone(indexed_lake: Path) -> None:
    code = f"import skipstone.commands.app as c\ntry: c.main(['scan', {str(indexed_lake)!r}, '--count', '--json'])\n"
    loaded = _modules_of(code + "except SystemExit as end: assert not end.code, end.code")
    verbs = {name for name in loaded if name.startswith("skipstone.commands.")}
    assert verbs == {f"skipstone.commands.{name}" for name in ("app", "arguments", "output", "read")}
    assert {"rich"} & set(loaded) == set()


def test_the_checkout_is_imported_once() -> None:
    """The root of the repository is the package: under pytest's other layouts it loads again as the checkout's name."""
    twice = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name.partition(".")[0] == "skipstone":
            continue
        path = Path(file)
        inside = path.is_relative_to(REPOSITORY) and path.relative_to(REPOSITORY).parts
        if inside and not inside[0].startswith(".") and inside[0] not in {"tests", "bench", "scripts"}:
            twice.append(f"{name}: {file}")
    imports = [text for finder in sys.meta_path for text in getattr(finder, "imports", ())]  # tests/conftest.py
    assert twice == [], "\n".join(imports)
    assert Path(skipstone.__file__).parent == REPOSITORY


def test_create_loads_no_pandas(indexed_lake: Path, tmp_path: Path) -> None:
    create = f"import skipstone as ss\nss.create({str(indexed_lake)!r}, index_path={str(tmp_path / 'index')!r})"
    assert _loaded_by(create) & {"pandas", "duckdb"} == set()
