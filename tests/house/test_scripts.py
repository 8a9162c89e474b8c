"""scripts/java_home.py: an old Java does not count, and the wrapper changes only one argument."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def java_home() -> ModuleType:
    spec = importlib.util.spec_from_file_location("java_home", REPOSITORY / "scripts" / "java_home.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def _fake_java(home: Path, version: str, status: int = 0) -> Path:
    context = f"    java.home = {home}\n    java.specification.version = {version}\n"
    return _executable(home / "bin" / "java", f"#!/bin/sh\ncat >&2 <<'END'\n{context}END\nexit {status}\n")


@pytest.mark.parametrize(
    ("version", "status", "good"), [("1.8", 0, False), ("11", 0, False), ("17", 0, True), ("21", 1, False)]
)
def test_only_a_java_that_runs_and_is_new_enough_counts(
    java_home: ModuleType, tmp_path: Path, version: str, status: int, good: bool
) -> None:
    home = tmp_path / "a jdk"
    assert java_home.java_home_of(_fake_java(home, version, status)) == (home if good else None)
    assert java_home.java_home_of(tmp_path / "nothing") is None


def test_order_of_search(java_home: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, on_path, made = (tmp_path / name for name in ("named", "on_path", "made"))
    for home in (named, on_path, made):
        _fake_java(home, "17")
    monkeypatch.setattr(java_home, "WRAPPER_HOME", made)
    monkeypatch.setenv("JAVA_HOME", str(named))
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}:/usr/bin:/bin")
    assert java_home.find() == named
    _fake_java(named, "11")
    assert java_home.find() == on_path
    _fake_java(on_path, "11")
    assert java_home.find() == made
    (made / "bin" / "java").unlink()
    assert java_home.find() is None


def test_wrapper_drops_the_missing_module_and_nothing_else(java_home: ModuleType, tmp_path: Path) -> None:
    shown = _executable(tmp_path / "show it", "#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    wrapper = _executable(tmp_path / "java", java_home.wrapper_text(shown))
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$HOME 'x'", "--add-modules=java.sql"]
    done = subprocess.run([str(wrapper), *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "<-cp><a b:*><><$HOME 'x'><--add-modules=java.sql>"
