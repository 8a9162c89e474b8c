"""The mass test itself: many predicates over a random lake, every answer checked against two oracles.

check_lake(seed, ...)    one lake; the tally of what was checked. Raises UnsoundError with a reproduction
python soundness_run.py --seconds 60 --seed 1    many lakes; the last line is JSON

For each predicate: every file and row group with a matching row is among `files()` and `row_groups()`, `count()` is
exact, and for a sample `to_table()` has exactly the rows. `soundness_predicates` computes from plain values what must
match; a sample is checked row by row against `row_matches`, and DuckDB counts wherever its SQL has the same meaning.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
from oracle import multiset
from predicate_strategies import row_matches, rows_of
from skipstone.errors import SkipstoneError
from soundness_duckdb import duck_table
from soundness_lakes import RandomLake, make_lake
from soundness_predicates import FORMS, Pool, Tree, duck_of, leaves_in, node_of, outcomes_of, random_tree, where_of

_CODE = {False: 0, None: 1, True: 2}
_NO_NETWORK = {"threads": 1, "autoinstall_known_extensions": False, "autoload_known_extensions": False}


class UnsoundError(AssertionError):
    """An answer is wrong. The text contains the seed, the predicate and the rows."""


@dataclass(frozen=True)
class Size:
    """How large a lake is: files, leaves to draw predicates from, predicates; every how many predicates `row_groups()`
    and `count()` are asked, rows are read, and rows are tested one by one in plain Python."""

    files: int
    leaves: int
    predicates: int
    every_groups: int = 1
    every_count: int = 1
    every_rows: int = 12
    every_plain: int = 40


DEEP = Size(files=6, leaves=40, predicates=80)  # every predicate is counted, many are read
WIDE = Size(files=60, leaves=40, predicates=80, every_groups=4, every_count=8, every_rows=50)


def check_lake(seed: int, size: Size) -> Counter:
    """Checks `size.predicates` predicates over the lake of a seed.

    The tally: tables, files, scans (predicates over the whole table), pairs (file and predicate), of which so many
    scans were checked by DuckDB, were counted, were read, pruned something.
    """
    root = tempfile.mkdtemp(prefix="skipstone-soundness-")
    try:
        lake = make_lake(seed, root, size.files)
        rng = random.Random(seed ^ 0x5EED)
        pool = Pool(lake, rng, size.leaves)
        trees = [random_tree(pool, rng) for _ in range(size.predicates)]
        return _check(lake, pool, trees, rng, size)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _check(lake: RandomLake, pool: Pool, trees: list[Tree], rng: random.Random, size: Size) -> Counter:
    tally = Counter(tables=1, files=len({path for path, _ in lake.units}))
    _check_stored(lake)
    by_duckdb = _rows_by_duckdb(lake, pool, trees)
    for number, tree in enumerate(trees):
        outcomes = outcomes_of(tree, pool)
        if number % size.every_plain == 0:
            _check_plain(lake, pool, tree, outcomes)
        by_unit = np.bincount(lake.unit_of[outcomes == 2], minlength=len(lake.units))
        if by_duckdb[number] is not None:
            tally["by_duckdb"] += 1
            if not np.array_equal(by_duckdb[number], by_unit):
                sql = "; ".join(f"l{leaf}: {pool.duck[leaf]}" for leaf in sorted(leaves_in(tree)))
                raise UnsoundError(f"the oracles differ: seed {lake.seed}, {node_of(tree, pool)}, for DuckDB {sql}")
        every = (size.every_groups, size.every_count, size.every_rows)
        asked = Asked(rng.choice(FORMS), *(number % few == 0 for few in every))
        problem = wrong_with(lake, pool, tree, asked, tally)
        if problem is not None:
            raise UnsoundError(_report(lake, pool, tree, asked, problem))
        tally["scans"] += 1
        tally["pairs"] += tally["files"]
    return tally


@dataclass(frozen=True)
class Asked:
    """In which of FORMS the predicate is passed, and what is requested of the plan in addition to files()."""

    form: str
    groups: bool
    count: bool
    rows: bool


def wrong_with(lake: RandomLake, pool: Pool, tree: Tree, asked: Asked, tally: Counter) -> str | None:
    """What is wrong with the answers to one predicate; None if all are right."""
    try:
        return _wrong_answer(lake, pool, tree, asked, tally)
    except (SkipstoneError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return f"raises {type(error).__name__}: {error}"


def _wrong_answer(lake: RandomLake, pool: Pool, tree: Tree, asked: Asked, tally: Counter) -> str | None:
    matching = outcomes_of(tree, pool) == 2
    units = {lake.units[unit] for unit in np.unique(lake.unit_of[matching]).tolist()}
    where = where_of(tree, pool, asked.form)
    plan = lake.table.scan(where)
    files = plan.files().column("path").to_pylist()
    if missing := {path for path, _ in units} - set(files):
        return f"files() lacks {sorted(missing)}"
    if len(set(files)) < len(files):
        return "a file is listed twice"
    if asked.groups and (problem := _wrong_with_groups(lake, plan.row_groups(), units, tally)) is not None:
        return problem
    tally["pruned_files"] += len(files) < len({path for path, _ in lake.units})
    if asked.count:
        tally["counted"] += 1
        if (count := plan.count()) != matching.sum():
            return f"count() is {count}"
    if asked.rows:
        tally["read"] += 1
        rids = sorted(plan.to_table().column("rid").to_pylist())
        if rids != sorted(lake.rows.column("rid").filter(matching).to_pylist()):
            return f"to_table() holds other rows: {rids}"
    return None


def _wrong_with_groups(lake: RandomLake, groups: pa.Table, units: set[tuple[str, int]], tally: Counter) -> str | None:
    kept = set(zip(groups.column("path").to_pylist(), groups.column("row_group").to_pylist(), strict=True))
    if len(kept) < groups.num_rows:
        return "a row group is listed twice"
    if missing := {unit for unit in units if unit not in kept and (unit[0], None) not in kept}:
        return f"row_groups() lacks {sorted(missing)}"
    tally["groups_kept"] += len(kept)
    tally["groups"] += len(lake.units)
    return None


def _check_plain(lake: RandomLake, pool: Pool, tree: Tree, outcomes: np.ndarray) -> None:
    """Compare the outcomes with those of plain Python, one row at a time."""
    node = node_of(tree, pool)
    if "Cast(" not in repr(node):  # `row_matches` has no casts
        plain = [_CODE[row_matches(node, row)] for row in lake.plain]
        if plain != outcomes.tolist():
            raise UnsoundError(f"the two Python oracles differ: seed {lake.seed}, {node}")


def _check_stored(lake: RandomLake) -> None:
    """The table contains exactly the values of the oracle, bit for bit."""
    got = multiset(rows_of(lake.table.scan().to_table()))
    if got != multiset(lake.plain):
        raise UnsoundError(f"seed {lake.seed}: the table's rows are not those written")


# -- DuckDB -----------------------------------------------------------------------------------------------------------


def _rows_by_duckdb(lake: RandomLake, pool: Pool, trees: list[Tree]) -> list[np.ndarray | None]:
    """How many rows of each unit match each tree, by one query; None if DuckDB means something else."""
    texts = {number: text for number, tree in enumerate(trees) if (text := duck_of(tree, pool)) is not None}
    used = sorted(set().union(*(leaves_in(trees[number]) for number in texts), set()))
    counts = ", ".join(f"count(*) FILTER (WHERE {text}) AS c{number}" for number, text in texts.items())
    leaves = ", ".join(f"{pool.duck[leaf]} AS l{leaf}" for leaf in used)
    found: list[np.ndarray | None] = [None] * len(trees)
    if not texts:
        return found
    with duckdb.connect(config=_NO_NETWORK) as database:
        database.register("rows_of_lake", duck_table(lake))
        query = f"SELECT unit, {counts} FROM (SELECT unit, {leaves} FROM rows_of_lake) GROUP BY unit"
        counted = database.execute(query).fetchnumpy()
    for number in texts:
        found[number] = np.zeros(len(lake.units), dtype=np.int64)
        found[number][counted["unit"]] = counted[f"c{number}"]
    return found


# -- reports ----------------------------------------------------------------------------------------------------------


def shrunk(tree: Tree, is_wrong: Callable[[Tree], bool]) -> Tree:
    """A part of the tree that is wrong too, and has no wrong part itself."""
    while True:
        smaller = next((candidate for candidate in _smaller(tree) if is_wrong(candidate)), None)
        if smaller is None:
            return tree
        tree = smaller


def _smaller(tree: Tree) -> list[Tree]:
    if tree[0] == "leaf":
        return []
    found = list(tree[1])
    if tree[0] != "not" and len(tree[1]) > 2:
        found += [(tree[0], tree[1][:at] + tree[1][at + 1 :]) for at in range(len(tree[1]))]
    for at, child in enumerate(tree[1]):
        found += [(tree[0], (*tree[1][:at], one, *tree[1][at + 1 :])) for one in _smaller(child)]
    return found


def _report(lake: RandomLake, pool: Pool, tree: Tree, asked: Asked, problem: str) -> str:
    tree = shrunk(tree, lambda one: wrong_with(lake, pool, one, asked, Counter()) is not None)
    problem = wrong_with(lake, pool, tree, asked, Counter()) or problem
    outcomes = outcomes_of(tree, pool)
    names = dict.fromkeys(name for leaf in leaves_in(tree) for name in pool.columns[leaf])
    lines = [
        f"{problem}",
        f"lake of seed {lake.seed}, asked {asked}, where {where_of(tree, pool, asked.form)!r}",
        f"{node_of(tree, pool)}: {(outcomes == 2).sum()} rows match",
    ]
    lines += [f"  {name}: {pool.kinds[name]}" for name in names]
    for unit in np.unique(lake.unit_of[outcomes == 2]).tolist()[:6]:
        path, group = lake.units[unit]
        lines.append(f"  {path} row group {group}, from {lake.notes[path][:300]}")
        for row in np.flatnonzero(lake.unit_of == unit).tolist():
            values = {name: lake.plain[row][name] for name in names}
            lines.append(f"    {values} {('false', 'null', 'MATCHES')[outcomes[row]]}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    ends, tally, wrong = time.monotonic() + asked.seconds, Counter[str](), []
    for number in itertools.count():
        if time.monotonic() > ends:
            break
        try:
            # Of a lake of many files each is a pair, since one scan answers for each of them.
            lake = check_lake(asked.seed * 1_000_000 + number, WIDE if number % 2 else DEEP)
            tally += lake + Counter(tried=lake["pairs"] if number % 2 else lake["scans"])
        except UnsoundError as error:
            wrong.append(str(error))
    print(json.dumps({**tally, "wrong": wrong}), flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
