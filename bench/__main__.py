"""`python -m bench NAME` runs bench/NAME.py; without a name, lists what there is."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

_HELPERS = {"__main__", "harness", "data", "made", "targets", "planning_data", "planning_lake", "planning_sizes"}
_HELPERS |= {"listing_data", "listing_lake", "listing_commits", "listing_create", "bloom_keys", "needle_peers"}
_HELPERS |= {"far", "filter_lake", "sorted_file_data", "sorted_file_rows", "sorted_file_peers", "sorted_file_ours"}
_HELPERS |= {"sorted_file_contender", "sorted_file_merging", "sorted_file_report", "sorted_file_timing"}
_HELPERS |= {"page_cache", "spark_floor", "spark_lake", "spark_writes"}


def benchmarks() -> dict[str, str]:
    """The name of each benchmark and the first line of its docstring."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in _HELPERS:
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            found[path.stem] = text.partition("\n")[0]
    return found


def main(arguments: list[str]) -> None:
    known = benchmarks()
    if len(arguments) == 1 and arguments[0] in known:
        importlib.import_module(f"bench.{arguments[0]}").main()
        return
    for name, title in known.items():
        print(f"  make bench NAME={name:<12} {title}")
    if arguments:
        raise SystemExit(f"no benchmark is named {' '.join(arguments)!r}")


if __name__ == "__main__":
    main(sys.argv[1:])
