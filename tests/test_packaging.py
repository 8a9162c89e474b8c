"""What is installed is what the tree holds: every package, every module, the type marker, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
NOT_INSTALLED = {"tests", "bench", "scripts", "docs", "build", "dist"}


@pytest.fixture(scope="module")
def packages() -> list[str]:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["setuptools"]["packages"]


def _folder(package: str) -> Path:
    return Path(*package.split(".")[1:])


def _modules(packages: list[str]) -> set[str]:
    found = set()
    for package in packages:
        for path in (REPOSITORY / _folder(package)).glob("*.py"):
            found.add(("skipstone" / path.relative_to(REPOSITORY)).as_posix())
    return found


def test_package_list_equals_the_tree(packages: list[str]) -> None:
    in_tree = {"skipstone"}
    for room in REPOSITORY.iterdir():
        if room.is_dir() and room.name not in NOT_INSTALLED and not room.name.startswith("."):
            folders = {path.parent.relative_to(REPOSITORY) for path in room.rglob("*.py")}
            in_tree |= {".".join(["skipstone", *folder.parts]) for folder in folders}
    assert packages == sorted(in_tree)
    assert [package for package in packages if not (REPOSITORY / _folder(package) / "__init__.py").exists()] == []


@pytest.fixture(scope="module")
def installed(packages: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel's contents. It is built from a copy, or `build/` would be left in the checkout."""
    pytest.importorskip("setuptools", minversion="77", reason='setuptools >= 77 is needed: pip install -e ".[dev]"')
    source, made, unpacked = (tmp_path_factory.mktemp(name) for name in ("source", "wheel", "unpacked"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "py.typed"):
        shutil.copy(REPOSITORY / name, source)
    for package in packages:
        (source / _folder(package)).mkdir(exist_ok=True, parents=True)
    for name in _modules(packages):
        inside = Path(name).relative_to("skipstone")
        shutil.copy(REPOSITORY / inside, source / inside)
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
    assert contents == _modules(packages) | {"skipstone/py.typed"}
    assert any(name.endswith("licenses/LICENSE") for name in files)


def test_wheel_imports_from_where_it_is_unpacked(installed: Path, packages: list[str], tmp_path: Path) -> None:
    """-I keeps the checkout and the environment's variables out; the editable install's finder comes after."""
    eager = [package for package in packages if package != "skipstone.spark_adapter"]
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        f"import importlib\n"
        f"for name in {eager!r}: importlib.import_module(name)\n"
        f"strays = [m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'skipstone'\n"
        f"          and not m.__file__.startswith({str(installed)!r})]\n"
        f"assert not strays, strays\n"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True, cwd=tmp_path, stdin=subprocess.DEVNULL)
