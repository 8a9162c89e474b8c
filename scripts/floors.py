"""Print the requirements of an environment with the oldest versions that pyproject.toml allows of each library that
users install, and with the other libraries that the tests need:

    python scripts/floors.py > floors.txt
    python scripts/floors.py pyspark==4.1.0 > floors.txt    # with another version of a library

`make floors` installs them and runs the tests there. Only pyproject.toml contains the versions.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
NOT_FOR_USERS = ("dev", "docs", "wheel", "bench")
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[(?P<extras>[\w,-]+)\])?(\s*>=\s*(?P<floor>[\w.]+))?")


def floors() -> dict[str, str]:
    """Return name -> oldest version, of the libraries that users install."""
    extras = _project()["optional-dependencies"]
    for_users = [text for extra, texts in extras.items() if extra not in NOT_FOR_USERS for text in texts]
    matches = [_parsed(text) for text in [*_project()["dependencies"], *for_users]]
    return {match["name"]: match["floor"] for match in matches if match["floor"]}


def requirements(versions: dict[str, str]) -> list[str]:
    """Return what pip installs: the oldest versions, and the tests' libraries. `versions`: name -> another version."""
    project, pins = _project(), floors() | versions
    tools = {_parsed(text)["name"]: text for text in project["optional-dependencies"]["dev"]}
    tools.pop("skipstone")
    extras = {name: _parsed(text)["extras"] for name, text in tools.items()}
    pinned = [f"{name}[{extras[name]}]=={pin}" if extras.get(name) else f"{name}=={pin}" for name, pin in pins.items()]
    return pinned + [text for name, text in tools.items() if name not in pins]


def _project() -> dict:
    project: dict = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    return project


def _parsed(text: str) -> re.Match[str]:
    match = _REQUIREMENT.match(text)
    assert match is not None, text
    return match


if __name__ == "__main__":
    print("\n".join(requirements(dict(argument.split("==") for argument in sys.argv[1:]))))
