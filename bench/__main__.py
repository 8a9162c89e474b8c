"""`python -m bench NAME` runs bench/NAME.py; without a name, it lists the benchmarks. Shared code is in support/."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path


def benchmarks() -> dict[str, str]:
    """Return the name of each benchmark and the first line of its docstring."""
    titles = {}
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        titles[path.stem] = text.partition("\n")[0]
    return titles


def main(arguments: list[str]) -> None:
    titles = benchmarks()
    if len(arguments) == 1 and arguments[0] in titles:
        importlib.import_module(f"bench.{arguments[0]}").main()
        return
    for name, title in titles.items():
        print(f"  make bench NAME={name:<12} {title}")
    if arguments:
        raise SystemExit(f"no benchmark is named {' '.join(arguments)!r}")


if __name__ == "__main__":
    main(sys.argv[1:])
