"""Importing is cheap, and there is one copy of the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import skipstone

REPOSITORY = Path(__file__).parent.parent
LATE = {"numba", "llvmlite", "pyspark", "py4j", "typer", "click", "rich", "sqlglot", "obstore", "pandas"}


def _loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh process holds after `code`."""
    code += "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    told = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd="/"
    )
    return set(json.loads(told.stdout.splitlines()[-1]))


def test_import_is_lazy() -> None:
    loaded = _loaded_by("import skipstone")
    assert "skipstone" in loaded
    assert loaded & LATE == set()


def test_import_of_each_room_is_lazy() -> None:
    """A small look-up imports the rooms: none of them may pull in a compiler, a parser or a cloud client."""
    rooms = ["errors", "canon", "bloom", "hfile_like", "engine", "engine.predicates", "engine.storage", "engine.scan"]
    loaded = _loaded_by("import " + ", ".join(f"skipstone.{room}" for room in rooms))
    assert loaded & LATE == set()


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
    assert twice == []
    assert Path(skipstone.__file__).parent == REPOSITORY
