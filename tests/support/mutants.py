"""Small defects planted in the product, one at a time: does a test catch each of them?

    python tests/support/mutants.py mutate --seed 0 --count 60
    python tests/support/mutants.py mutate --count 60 --checkout OLDER           # its product and its tests
    python tests/support/mutants.py mutate --count 60 --tests OTHER --only 3,17  # other tests, the same product
    python tests/support/mutants.py mutate --first BEFORE.txt  # what an earlier run printed: its tests come first

A mutant flips a comparison, `and`/`or`, `&`/`|`, `+`/`-` or `min`/`max`, drops a `not` or `~`, adds one to a number,
turns a truth value round, or leaves out the call that a statement makes. The choice depends on the product's source and
the seed alone. Every mutant meets the tests of its area, without Spark and until the first one fails, in a copy of the
checkout: the checkout itself is never touched. The files that caught others in the same source come first, in a process
of their own, so that most mutants need no more. A mutant that survives is a hole in the tests or equivalent to the
source: read it.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

CPU_S_MAX = 90  # of one process, by default: a loop without an end, or tests that passed until then
WALL_S_MAX = 1800
NEAREST = 4  # files of tests that are tried before all others


@dataclass(frozen=True)
class Area:
    """Source files and the tests that check most of them, the fast ones first; globs below the checkout."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


ANSWERS = ("soundness/test_rules_*.py", "soundness/test_known_traps.py", "soundness/test_edge_cases.py")
AREAS = {
    "pruning": Area(
        (
            *(f"engine/scan/{name}.py" for name in ("prune", "row_groups", "units", "best_first", "top_n", "extremes")),
            *(f"engine/predicates/{name}.py" for name in ("outcomes", "possible_values", "implied")),
            "engine/parquet/leaves.py",
        ),
        (
            *("predicates/test_outcomes.py", "scan/test_tight_pruning*.py", "scan/test_ordered_rows.py"),
            *("scan/test_min_max.py", "scan/test_scan.py", "predicates/test_implied_ranges.py"),
            *("scan/test_explain.py", "scan/test_coarse_pruning.py", "scan/test_point_reads.py"),
            *("scan/test_slice_scan.py", "scan/test_key_lookup*.py", "indexes/test_statistics_shards.py"),
            *(*ANSWERS, "soundness/test_soundness.py"),
        ),
    ),
    "reading": Area(
        (
            *(f"engine/scan/{name}.py" for name in ("rows", "planned_rows", "file_reader", "lookup")),
            *(f"engine/scan/{name}.py" for name in ("keys", "file_tasks", "duckdb_select", "duckdb_reader")),
            *("engine/scan/duckdb_sql.py", "engine/parquet/exact_cast.py", "engine/parquet/footers.py"),
            *("engine/predicates/rows.py", "engine/predicates/coerce.py"),
        ),
        (
            *("scan/test_scan.py", "scan/test_key_lookup*.py", "scan/test_ordered_rows.py", "scan/test_min_max.py"),
            *("predicates/test_row_evaluation.py", "predicates/test_value_types.py", "scan/test_slice_scan.py"),
            *("scan/test_lake_dataset.py", "scan/test_sql_queries.py", "lakes/test_wider_types.py"),
            *("parquet/test_duckdb_reader.py", "parquet/test_foreign_writers.py", "predicates/test_where_engines.py"),
            "parquet/test_footer_bound_order.py",
            *ANSWERS,
        ),
    ),
    "coverage": Area(
        (
            *("engine/state/coverage.py", "engine/indexes/probe_results.py", "engine/indexes/*/kind.py"),
            *("engine/indexes/bloom/coarse_groups.py", "engine/indexes/stats/aggregates.py"),
            "engine/indexes/secondary/key_ranges.py",
        ),
        (
            *("soundness/test_rules_coverage.py", "soundness/test_rules_evidence.py", "indexes"),
            *("table/test_optimize.py", "rows_by_key/test_moved_entries.py", "soundness/test_life_of_a_table.py"),
        ),
    ),
    "commit": Area(
        (
            *(f"engine/commit/{name}.py" for name in ("commit", "edit", "restore", "bind", "conflicts")),
            *(f"engine/commit/{name}.py" for name in ("sync", "adopt_columns", "alter", "clean")),
        ),
        (
            *("commit", "soundness/test_rules_versions.py", "table/test_rollback.py", "table/test_restore.py"),
            *("table/test_clean.py", "table/test_alter.py", "lakes/test_new_columns.py", "lakes/test_sync.py"),
            *("tasks/test_distributed_transaction.py", "soundness/test_life_of_a_table.py", "state", "table"),
        ),
    ),
    "merge": Area(
        ("engine/state/lsm.py", "hfile_like/*merge*.py", "engine/indexes/*/merge.py"),
        (
            *("hfile_like/test_merge*.py", "state/test_manifest.py", "indexes/test_filter_run*.py"),
            *("indexes/test_index_types.py", "indexes/test_secondary_runs.py", "indexes/test_secondary_rules.py"),
            *("indexes/test_statistics_*.py", "table/test_optimize.py", "table/test_table.py"),
        ),
    ),
}
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file; lines and columns as `ast` counts them (columns in bytes)."""

    number: int
    area: str
    path: str
    kind: str
    line: int
    column: int
    end_line: int
    end_column: int
    old: str
    new: str

    def applied(self, source: str) -> str:
        lines = source.encode().splitlines(keepends=True)
        head = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        tail = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (head + self.new.encode() + tail).decode()

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:70] for text in (self.old, self.new))
        return f"{self.number:3} {self.area:8} {self.path}:{self.line} {self.kind}: {old}  ->  {new}"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.expr | str]]:
    """(the kind of a mutant, the expression or statement that replaces the node)"""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield "comparison", ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)
        case ast.BinOp(op=op) if type(op) in SWAPS:
            yield "operator", ast.BinOp(node.left, SWAPS[type(op)](), node.right)
        case ast.BoolOp(op=op):
            yield "operator", ast.BoolOp(SWAPS[type(op)](), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.Invert()):
            yield "negation", node.operand
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield "function", ast.Call(ast.Name(NAMES[name]), node.args, node.keywords)
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES:
            yield "function", ast.Call(ast.Attribute(node.func.value, NAMES[name]), node.args, node.keywords)
        case ast.Constant(value=bool(value)):
            yield "truth value", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "number", ast.Constant(value + 1)
        case ast.Expr(value=ast.Call()):
            yield "left out", "pass"


def sites(node: ast.AST) -> Iterator[ast.AST]:
    """What may be changed: neither annotations nor the texts of errors, nor what only type checkers see."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list"} or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_text = isinstance(child, ast.Raise | ast.Assert)
            is_text |= isinstance(node, ast.Module) and isinstance(child, ast.Assign)  # names of types, most of them
            if isinstance(child, ast.AST) and not is_text and "TYPE_CHECKING" not in ast.dump(child)[:80]:
                yield child
                yield from sites(child)


def chosen(checkout: Path, seed: int, count: int) -> list[Mutant]:
    """Mutants: as many of each area, and in an area as many of each kind, as can be."""
    found: list[Mutant] = []
    for number, (name, area) in enumerate(AREAS.items()):
        choice = random.Random(f"{seed} {name}")
        by_kind: dict[str, list[Mutant]] = {}
        for path in sorted({path for pattern in area.sources for path in checkout.glob(pattern)}):
            source = path.read_text(encoding="utf-8")
            for node in sites(ast.parse(source)):
                for kind, new in changes(node):
                    text = new if isinstance(new, str) else f"({ast.unparse(new)})"
                    old = ast.get_source_segment(source, node) or ""
                    place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
                    one = Mutant(0, name, str(path.relative_to(checkout)), kind, *place, old, text)
                    by_kind.setdefault(kind, []).append(one)
        wanted = count * (number + 1) // len(AREAS) - count * number // len(AREAS)
        for kind in sorted(by_kind):
            choice.shuffle(by_kind[kind])
        while wanted and any(by_kind.values()):
            for kind in sorted(by_kind):
                if wanted and by_kind[kind]:
                    one = by_kind[kind].pop()
                    found.append(Mutant(len(found), *list(vars(one).values())[1:]))
                    wanted -= 1
    return found


# A failing example is wanted, not the smallest one.
PLUGIN = """
from hypothesis import Phase, settings

register = settings.register_profile


def without_shrinking(name, *parent, **given):
    register(name, *parent, **{"phases": (Phase.explicit, Phase.generate), **given})


type.__setattr__(settings, "register_profile", staticmethod(without_shrinking))  # a class that refuses assignments
"""


class Copy:
    """A copy of the product in which one file at a time is changed, imported as `skipstone` by the tests' process."""

    def __init__(self, folder: Path, checkout: Path, tests: Path, cpu_s_max: int) -> None:
        self.tests, self.tree, self._cpu_s_max = tests, folder / "tree", cpu_s_max
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=checkout, capture_output=True, text=True, check=True)
        for name in listed.stdout.split("\0"):
            if name and (checkout / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, self.tree / name)
        path = folder / "path"
        path.mkdir()
        (path / "skipstone").symlink_to(self.tree)
        (path / "without_shrinking.py").write_text(PLUGIN)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "PYTHONPATH": str(path),
            "TMPDIR": str(folder),
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        }
        where = [sys.executable, "-c", "import skipstone; print(skipstone.__file__)"]
        shown = subprocess.run(where, env=self.environment, cwd=folder, capture_output=True, text=True, check=True)
        assert Path(shown.stdout.strip()).resolve().is_relative_to(self.tree.resolve()), shown.stdout

    def outcome(self, mutant: Mutant | None, area: Area, catches: Counter[str], known: str = "") -> tuple[str, str]:
        """("caught", by which test) or ("survived", ""); of no mutant: whether the tests pass as they should.
        `catches`: how many mutants of the same source a file of tests has caught. `known`: a test that caught it."""
        paths = [path for pattern in area.tests for path in sorted(self.tests.glob(pattern))]
        files = [file for path in paths for file in (sorted(path.glob("test_*.py")) if path.is_dir() else [path])]
        names = sorted(dict.fromkeys(str(file.relative_to(self.tests)) for file in files), key=lambda f: -catches[f])
        file = self.tree / (mutant.path if mutant else "errors.py")
        source, times = file.read_text(encoding="utf-8"), file.stat()
        try:
            if mutant:
                file.write_text(mutant.applied(source), encoding="utf-8")
            if known and (self.tests / known.partition("::")[0]).exists():
                ended = self._ended([known])
                if ended[0] == "caught":
                    return ended
            ended = self._ended(names[:NEAREST])
            is_last = ended[0] != "survived" or ended[1] or not names[NEAREST:]
            return ended if is_last else self._ended(names[NEAREST:])
        finally:
            file.write_text(source, encoding="utf-8")
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _ended(self, names: list[str]) -> tuple[str, str]:
        command = [sys.executable, "-m", "pytest", "-c", str(self.tests / "pytest.ini"), "--rootdir", str(self.tests)]
        command += ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-p", "without_shrinking", "-k", "not spark", *(str(self.tests / name) for name in names)]
        limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (self._cpu_s_max, self._cpu_s_max + 5))  # noqa: E731
        process = subprocess.Popen(
            command,
            env=self.environment,
            cwd=self.tests.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            preexec_fn=limit,
        )
        try:
            output, _ = process.communicate(timeout=WALL_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return "survived", f"{WALL_S_MAX} s"
        if process.returncode == 0:
            return "survived", ""
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return "survived", f"{self._cpu_s_max} s of tests"
        by = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        if not by:  # the tests could not be run at all
            return "not run", " ".join(output[-300:].split())
        return "caught", by[1]


def caught_before(printed: Path) -> dict[str, str]:
    """{mutant: the test that caught it}, from what an earlier run printed."""
    lines = re.findall(r"^caught +( *\d+ .*)   \d+ s (?:tests/)?(\S.*)$", printed.read_text(), re.MULTILINE)
    return {mutant.strip(): test for mutant, test in lines}


def mutate(options: argparse.Namespace) -> int:
    """Runs the mutants and prints what became of each; how many survived."""
    checkout = options.checkout.resolve()
    tests = (options.tests or checkout).resolve() / "tests"
    mutants = chosen(checkout, options.seed, options.count)
    if options.only:
        mutants = [one for one in mutants if str(one.number) in options.only.split(",")]
    if options.list:
        print(*mutants, sep="\n")
        return 0
    caught: dict[str, list[bool]] = {}
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        copies: Queue[Copy] = Queue()
        for number in range(options.jobs):
            (Path(folder) / str(number)).mkdir()
            copies.put(Copy(Path(folder) / str(number), checkout, tests, options.cpu_s))

        catches: dict[str, Counter[str]] = {}
        known = caught_before(options.first) if options.first else {}

        def run(mutant: Mutant | None, area: str) -> tuple[str, str, float]:
            copy, began = copies.get(), time.monotonic()
            counts = catches.setdefault(mutant.path if mutant else area, Counter())
            try:
                ended, by = copy.outcome(
                    mutant, AREAS[area], counts + catches.get(area, Counter()), known.get(str(mutant).strip(), "")
                )
            finally:
                copies.put(copy)
            if ended == "caught":
                file = by.partition("::")[0].removeprefix("tests/")
                counts[file] += 10
                catches.setdefault(area, Counter())[file] += 1
            return ended, by, time.monotonic() - began

        with ThreadPoolExecutor(options.jobs) as pool:
            if options.sound:
                for area in AREAS:
                    print("unchanged:", area, *run(None, area), flush=True)
            jobs = {pool.submit(run, one, one.area): one for one in mutants}
            for job in as_completed(jobs):
                one, (ended, by, wall_s) = jobs[job], job.result()
                caught.setdefault(one.area, []).append(ended == "caught")
                print(f"{ended:8} {one}   {wall_s:.0f} s {by}", flush=True)
    for area, each in caught.items():
        print(f"{area}: {sum(each)} of {len(each)} caught")
    total = [one for each in caught.values() for one in each]
    print(f"in all: {sum(total)} of {len(total)} caught")
    return 0


def main() -> int:
    here = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["mutate"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--checkout", type=Path, default=here, help="whose product is changed")
    parser.add_argument("--tests", type=Path, help="the checkout whose tests are run (default: the same)")
    parser.add_argument("--only", help="numbers of mutants, 3,17")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time")
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    parser.add_argument("--sound", action="store_true", help="first run the tests on the unchanged product")
    parser.add_argument("--scratch", type=Path, help="a folder for the copies")
    parser.add_argument("--cpu-s", type=int, default=CPU_S_MAX, help="processor seconds of one process of tests")
    parser.add_argument("--first", type=Path, help="what an earlier run printed: the tests that caught come first")
    return mutate(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
