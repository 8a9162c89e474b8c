"""Prints the least version that pyproject.toml allows of each package that users install, as constraints for pip:

    python -m venv /tmp/floors
    python scripts/floors.py > /tmp/floors.txt
    /tmp/floors/bin/pip install -c /tmp/floors.txt -e '.[dev]'

pyproject.toml is the one place where floors stand.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
NOT_FOR_USERS = ("dev", "docs", "wheel", "bench")
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*>=\s*(?P<floor>[\w.]+)")


def floors() -> dict[str, str]:
    """name -> least version."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = [texts for extra, texts in project["optional-dependencies"].items() if extra not in NOT_FOR_USERS]
    matches = [match for texts in [project["dependencies"], *extras] for t in texts if (match := _REQUIREMENT.match(t))]
    return {match["name"]: match["floor"] for match in matches}


if __name__ == "__main__":
    for name, floor in floors().items():
        print(f"{name}=={floor}")
