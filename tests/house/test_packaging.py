"""A wheel contains every package and module of the tree, the type marker, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from example_counts import only_in_test_all
from lake_strategies import make_lake

REPOSITORY = Path(__file__).parents[2]
FOUND_BY_SPARK = Path("spark_adapter", "pyspark_skipstone")
NOT_INSTALLED = {"tests", "bench", "scripts", "docs", "examples", "build", "dist"}


@pytest.fixture(scope="module")
def packages() -> list[str]:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["setuptools"]["packages"]


def _folder(package: str) -> Path:
    """Spark finds a source by the name of a top-level package: that one is in the room that it belongs to."""
    return FOUND_BY_SPARK if package == FOUND_BY_SPARK.name else Path(*package.split(".")[1:])


def _installed_name(path: Path) -> str:
    inside = path.relative_to(REPOSITORY)
    found = inside.is_relative_to(FOUND_BY_SPARK)
    return (inside.relative_to(FOUND_BY_SPARK.parent) if found else "skipstone" / inside).as_posix()


def _modules(packages: list[str]) -> set[str]:
    found = set()
    for package in packages:
        for path in (REPOSITORY / _folder(package)).glob("*.py"):
            found.add(_installed_name(path))
    return found


def test_package_list_equals_the_tree(packages: list[str]) -> None:
    in_tree = {"skipstone"}
    for room in REPOSITORY.iterdir():
        if room.is_dir() and room.name not in NOT_INSTALLED and not room.name.startswith("."):
            folders = {path.parent.relative_to(REPOSITORY) for path in room.rglob("*.py")}
            in_tree |= {".".join(["skipstone", *folder.parts]) for folder in folders - {FOUND_BY_SPARK}}
            in_tree |= {folder.name for folder in folders & {FOUND_BY_SPARK}}
    assert packages == sorted(in_tree)
    assert [package for package in packages if not (REPOSITORY / _folder(package) / "__init__.py").exists()] == []


@pytest.fixture(scope="module")
def installed(packages: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel's contents. It is built from a copy, or `build/` would be left in the checkout."""
    pytest.importorskip("setuptools", minversion="77", reason='setuptools >= 77 is needed: pip install -e ".[dev]"')
    source, made, unpacked = (tmp_path_factory.mktemp(name) for name in ("source", "wheel", "unpacked"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "py.typed", "__init__.pyi"):
        shutil.copy(REPOSITORY / name, source)
    for package in packages:
        (source / _folder(package)).mkdir(exist_ok=True, parents=True)
        for path in (REPOSITORY / _folder(package)).glob("*.py*"):
            shutil.copy(path, source / _folder(package))
    for folder in ("tests", "bench"):
        (source / folder).mkdir()
        (source / folder / "stray.py").write_text("raise SystemExit('this was not to be installed')\n")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(made), str(source)], check=True, stdin=subprocess.DEVNULL)
    (wheel,) = made.glob("skipstone-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    return unpacked


def test_wheel_holds_every_module_and_nothing_else(installed: Path, packages: list[str]) -> None:
    files = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    contents = {name for name in files if ".dist-info/" not in name}
    stubs = {f"skipstone/{room}__init__.pyi" for room in ("", "bloom/", "hfile_like/", "spark_adapter/")}
    assert contents == _modules(packages) | stubs | {"skipstone/py.typed"}
    assert any(name.endswith("licenses/LICENSE") for name in files)


def test_wheel_imports_from_where_it_is_unpacked(installed: Path, packages: list[str], tmp_path: Path) -> None:
    """-I keeps the checkout and the environment's variables out; the editable install's finder comes after."""
    eager = [package for package in packages if package not in ("skipstone.spark_adapter", FOUND_BY_SPARK.name)]
    code = f"""
import importlib, sys; sys.path.insert(0, {str(installed)!r})
for name in {eager!r}: importlib.import_module(name)
ours = [module.__file__ for name, module in sys.modules.items() if name.split('.')[0] == 'skipstone']
assert ours and all(file.startswith({str(installed)!r}) for file in ours), ours
"""
    subprocess.run([sys.executable, "-I", "-c", code], check=True, cwd=tmp_path, stdin=subprocess.DEVNULL)


@only_in_test_all  # by default test_spark_imports_little_to_find_the_source
def test_spark_finds_the_source_by_its_name(installed: Path, tmp_path: Path, java_home: str) -> None:
    """No import, no register(); and registering after all is no error."""
    lake = make_lake(tmp_path / "lake", [{"k": [1, 2, 3]}])
    code = f"""
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')
spark = builder.config('spark.driver.bindAddress', '127.0.0.1').getOrCreate()
found = spark.read.format('skipstone').option('where', 'k > 1').load({str(lake)!r})
assert sorted(row.k for row in found.collect()) == [2, 3]
assert not [name for name in sys.modules if name.split('.')[0] == 'skipstone']
from skipstone import spark_adapter as sks
assert sks.__file__.startswith({str(installed)!r}), sks.__file__
assert sks.scan(spark, {str(lake)!r}, 'k > 2').collect() == [(3,)]
sks.register(spark.newSession())
spark.stop()
"""
    environment = {**os.environ, "PYTHONPATH": str(installed), "JAVA_HOME": java_home, "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path / "local")}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, stdin=subprocess.DEVNULL, env=environment)


def test_spark_imports_little_to_find_the_source(installed: Path, tmp_path: Path) -> None:
    """Spark imports it for users of other Python sources, too."""
    pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')
    code = f"""
import sys; sys.path.insert(0, {str(installed)!r})
import pyspark.sql.datasource; before = set(sys.modules)
import pyspark_skipstone
assert pyspark_skipstone.DefaultSource.name() == 'skipstone'
new = set(sys.modules) - before
ours = sorted(name for name in new if name.startswith('skipstone.'))
assert len(ours) < 12 and 'skipstone.engine.table' not in ours, ours
assert not {{'numba', 'pyarrow', 'duckdb'}} & new
"""
    subprocess.run([sys.executable, "-I", "-c", code], check=True, cwd=tmp_path, stdin=subprocess.DEVNULL)
