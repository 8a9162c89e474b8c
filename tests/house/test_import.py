"""Importing is cheap, and there is one copy of the package."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import skipstone
from lake_strategies import make_file

REPOSITORY = Path(__file__).parents[2]
LATE = {"numba", "llvmlite", "pyspark", "py4j", "rich", "duckdb", "obstore", "pandas"}

# Modules of Skipstone in a process that looks up one value by statistics, or by a filter. Each costs about 0.5 ms.
BY_STATISTICS_MAX, BY_FILTER_MAX = 100, 108


def _modules_of(code: str) -> list[str]:
    """The modules that a new process has loaded after `code`."""
    code += "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd="/"
    )
    return json.loads(process.stdout.splitlines()[-1])


def _loaded_by(code: str) -> set[str]:
    return {name.partition(".")[0] for name in _modules_of(code)}


def test_imports_are_lazy() -> None:
    """A small look-up imports these folders: none may load a compiler, a parser or a cloud client."""
    rooms = (
        "errors",
        "base.canon",
        "bloom",
        "hfile_like",
        "engine",
        "engine.predicates",
        "engine.storage",
        "engine.scan",
    )
    loaded = _loaded_by("import skipstone, " + ", ".join(f"skipstone.{room}" for room in rooms))
    assert "skipstone" in loaded and loaded & LATE == set()


def test_a_row_of_a_large_table_loads_no_reader_for_many(tmp_path: Path) -> None:
    """All of the table would be read by polars; loading that takes longer than finding the row."""
    zeros = pa.array(np.zeros(3_000_000, dtype=np.int8))
    make_file(tmp_path, "many.parquet", {f"c{i}": zeros for i in range(10)})
    make_file(tmp_path, "one.parquet", {f"c{i}": pa.array([1], pa.int8()) for i in range(10)})
    skipstone.create(tmp_path)
    ask = f"import skipstone as ss; rows = ss.open({str(tmp_path)!r}).scan(ss.col('c0') == 1).to_table()"
    assert "polars" not in _loaded_by(f"{ask}; assert rows.num_rows == 1")


@pytest.fixture(scope="module")
def indexed_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partitioned table of 4 files with 2 row groups each, and a bloom index on an uuid-like text."""
    root = tmp_path_factory.mktemp("lake")
    for day, part in itertools.product((1, 2), (1, 2)):
        rows = {"id": [f"{day}-{part}-{i}" for i in range(2_000)], "n": range(2_000)}
        make_file(root, f"day={day}/part-{part}.parquet", rows, row_group_size=1_000)
    for folder in (root / "day=1", root / "day=2", root):  # a folder that is younger than two seconds is listed again
        os.utime(folder, (1_700_000_000, 1_700_000_000))
    skipstone.create(root).create_index("id", kind="bloom")
    return root


@pytest.mark.parametrize(
    "where, rows, modules_max, left_out",
    [
        ("ss.col('n') == 7", 4, BY_STATISTICS_MAX, ("bloom.", "engine.indexes.bloom.format")),
        ("ss.col('id') == '1-2-1234'", 1, BY_FILTER_MAX, ("bloom.group", "bloom.sizing", "bloom.filter")),
        ("(ss.col('day') == 2) & (ss.col('id') == '2-1-7')", 1, BY_FILTER_MAX, ("bloom.group",)),
        ("\"day = 2 AND id IN ('2-1-7', '2-1-none')\"", 1, None, ()),
    ],
)
def test_a_cold_look_up_loads_nothing_slow_and_few_modules(
    indexed_lake: Path, where: str, rows: int, modules_max: int | None, left_out: tuple[str, ...]
) -> None:
    """numba, pandas (which pyarrow's own conversions import) and Spark each cost more than the look-up. Only SQL text
    needs DuckDB. No writer, no commit, no view for people and no index that the predicate does not need is loaded."""
    code = f"import skipstone as ss\nassert len(ss.open({str(indexed_lake)!r}).scan({where}).to_table()) == {rows}"
    names = _modules_of(code)
    loaded = {name.partition(".")[0] for name in names}
    assert loaded & LATE == set()
    assert ("_duckdb" in loaded) == where.startswith('"')
    if modules_max is not None:
        ours = [name for name in names if name.partition(".")[0] == "skipstone"]
        rooms = ("engine.commit", "engine.tasks", "engine.views", "engine.indexes.secondary", "hfile_like.writer")
        assert [name for name in ours if name.removeprefix("skipstone.").startswith((*rooms, *left_out))] == []
        assert len(ours) <= modules_max, f"{len(ours)} modules: {', '.join(ours)}"


@pytest.mark.parametrize(
    "call",
    [
        "ss.create({lake!r}, index_path={index!r})",
        "ss.open({lake!r}).lookup(['1-2-1234', '2-1-7'], on='id').to_table().num_rows",
        "ss.open({lake!r}).lookup([1234], on='n').count()",
        "ss.open({lake!r}).sql(\"SELECT count(*) FROM self WHERE id = '1-2-1234'\").fetchall()",
    ],
)
def test_other_calls_load_no_pandas(indexed_lake: Path, tmp_path: Path, call: str) -> None:
    loaded = _loaded_by(f"import skipstone as ss\nassert {call.format(lake=str(indexed_lake), index=str(tmp_path))}")
    assert loaded & {"pandas", "numba", "pyspark"} == set() and ("duckdb" not in loaded or "create" not in call)


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
