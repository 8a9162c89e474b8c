"""A finished room stays within its budget of lines and files, so that it cannot grow back unnoticed.

Every line of a Python file counts, docstrings and blank lines included. A room is entered here once it is within
its budget. Lower a number at any time. A higher one needs a line in docs/decisions/code-layout.md that says what the
lines are for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BUDGETS = {  # room: (lines, files)
    "bloom": (1_440, 8),
    "hfile_like": (5_270, 24),
    ".": (1_745, 12),  # base/ and the modules of the root
    "engine/parquet": (1_823, 9),
    "engine/scan": (8_680, 30),
    "serve": (1_099, 8),
    "engine/commit": (4_745, 16),
    "engine/state": (4_191, 15),
    "engine/storage": (1_992, 8),
    "engine/tasks": (1_232, 7),
    "engine/predicates": (5_967, 22),
    "engine/lakes": (3_837, 18),
    "spark_adapter": (5_330, 26),
    "commands": (1_899, 13),
    "engine/indexes": (8_021, 44),
    "engine/rows_by_key": (1_395, 7),
    "bench": (3_899, 25),
    "engine": (5_592, 27),  # its own modules, and advice/
}


@pytest.mark.parametrize("room", BUDGETS)
def test_a_finished_room_is_within_its_budget(room: str) -> None:
    files = sorted((REPOSITORY / room).rglob("*.py"))
    if room == ".":
        files = sorted([*REPOSITORY.glob("*.py"), *(REPOSITORY / "base").glob("*.py")])
    if room == "engine":
        files = sorted([*(REPOSITORY / "engine").glob("*.py"), *(REPOSITORY / "engine/advice").glob("*.py")])
    assert files, f"{room} has no files; remove its budget"
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    lines_max, files_max = BUDGETS[room]
    assert lines <= lines_max, (
        f"{room} has {lines:,} lines, and its budget is {lines_max:,}: remove a mechanism, or decide on a page"
    )
    assert len(files) <= files_max, f"{room} has {len(files)} files, and its budget is {files_max}"
