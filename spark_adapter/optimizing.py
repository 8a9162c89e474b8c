"""`optimized` and `sql`: plain queries of Spark that read only what their filters leave.

Catalyst pushes filters down to each relation of a query, those that follow from joins included. Its optimized plan is
read here: one of our relations, with the filters directly above it, is loaded again with these as its predicate, and
with the columns that are used. The filters stay, so Spark tests the rows; an unknown part prunes nothing.

    Project [k]                         Project [k]
    +- Filter (u = 'u7')                +- Filter (u = 'u7')
       +- our relation                     +- Project [k, u under the names and ids that the plan has]
                                              +- our relation, where u = 'u7', of columns k and u

Spark's own relations of a folder stay. If the folder is one of our tables, it keeps files that are no longer live:
`delete`, `merge`, `cluster` and every other replace leave the old files to older versions until a clean. Spark's reader
lists them too, so it returns deleted rows: that is an error.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..base.arrays import from_numpy
from ..base.caching import cached_property
from ..engine.lakes.directory import is_own_file
from ..engine.open import open_table
from ..engine.predicates import And, Constant, Node
from ..errors import InvalidArgumentError, NotReadableError, SkipstoneError
from . import catalyst
from .catalyst import FilteredRelation, ListedFiles
from .columns import from_tree, where_node, where_of, without_unknowns
from .jobs import error_in
from .options import encode_predicate, local_path
from .sessions import check_frame, register, relation_of, session_of
from .shares import is_bulk_read
from .source import load
from .wire_types import spark_schema, wire_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..engine.table import Table
    from .spark_semantics import Session

_Listed = set[tuple[str, int, int]]  # path below the table's folder, size in bytes, time of change in ms

_PATTERN = re.compile(r"[*?\[{]")


def optimized(frame: DataFrame) -> DataFrame:
    """Return a DataFrame with the same rows, in whose plan Skipstone's relations are read by the filters above them,
    also below projections, joins and views, and in subqueries that Spark makes joins.

        sks.optimized(spark.table("flights").join(planes, "tailnum").where("tailnum = 'N14228'")).show()

    Relations are those of `scan`, of `view` and of `format("skipstone")` with option `version`, each at its version.
    `current_timestamp()` is fixed now. Filter, join and select first: filters on the result prune nothing.
    If an operation depends on the order of rows (`sample`, `rand(7)`, row numbers, Python functions that are not
    deterministic), the relations below it are read as Spark reads them, so that its result is the same. `explain` shows
    what the result skips.

    A plan that is not understood is left unchanged, with a warning.

    Raises NotReadableError for a folder that `spark.read.parquet` (or a table of the catalog) lists whole if the table
    has replaced or removed some of its files, as `delete`, `merge` and `cluster` do: Spark would return deleted rows.
    Use `view`, `scan` or `read_parquet` instead. Raises InvalidArgumentError over Spark Connect, which shows no plans:
    use `scan` with `where=`.
    """
    check_frame(frame, "optimized")
    _check_classic(frame.sparkSession)
    try:
        plan = catalyst.optimized_plan(frame)
        stale = _stale_read(plan)
        if stale is None:
            rewriting = _Rewriting(frame.sparkSession)
            new = rewriting.rewrite(plan)
            return catalyst.frame_of_plan(frame, new) if rewriting.is_changed else frame
    except Exception as error:  # of a version of Spark with other internals
        warnings.warn(
            f"this query is unchanged, and its filters skip nothing: {type(error).__name__}: {error}", stacklevel=2
        )
        return frame
    raise stale


def sql(spark: SparkSession, text: str, *args: Any, **kwargs: Any) -> DataFrame:
    """Return `optimized(spark.sql(text))`. Spark alone runs a command (CREATE, INSERT).

        sks.sql(spark, "SELECT count(*) FROM flights WHERE tailnum = 'N14228'")

    Raises as `optimized`, and what `spark.sql` raises; an error of a `view` by its own type.
    """
    _check_classic(spark)
    try:
        frame = spark.sql(text, *args, **kwargs)
    except Exception as error:
        raise error_in(error) or error from None  # Spark wraps the error of a Skipstone view
    return optimized(frame)


def _check_classic(spark: Any) -> None:
    if not catalyst.is_classic(spark):
        raise InvalidArgumentError(
            "over Spark Connect a query's plan is the server's alone: give the filter to the load, "
            "sks.scan(spark, path, where=..., columns=[...]), and query that"
        )


class _Rewriting:
    """One pass over an optimized plan."""

    def __init__(self, spark: Any):
        self._spark = spark
        self.is_changed = False

    @cached_property
    def _settings(self) -> Session:
        return session_of(self._spark)

    def rewrite(self, node: Any) -> Any:
        """The plan with its relations loaded again; the node itself if nothing below it changes."""
        if catalyst.is_order_sensitive(node):
            return node
        relation = catalyst.filtered_relation(node)
        if relation is None:
            return catalyst.map_children(node, self.rewrite)
        loaded = self._loaded(relation)
        if loaded is None:
            return node
        self.is_changed = True
        return catalyst.with_relation(node, relation.node, catalyst.project_as(loaded, relation))

    def _loaded(self, relation: FilteredRelation) -> DataFrame | None:
        """The relation under its conditions, as a separate load; None if it is not ours, or gains nothing."""
        ours = relation_of(relation.node)
        if ours is None:
            return None
        request = ours.request()
        if request.version is None:  # the process in which Spark made the source chose it
            warnings.warn('a load without option "version" is unchanged: use scan() or view()', stacklevel=4)
            return None
        with request.open() as table:
            trees = map(catalyst.tree_of_expression, relation.conditions)
            nodes = [without_unknowns(from_tree(tree, table.schema, self._settings)) for tree in trees]
            nodes = [node for node in nodes if node != Constant(True)]
            if not nodes and (not ours.is_scan or relation.used == relation.columns):
                return None
            before = where_node(where_of(request), table.schema)
            nodes += [before] if isinstance(before, Node) else []
            both = And(tuple(nodes)) if len(nodes) > 1 else next(iter(nodes), None)
            plan = table.scan(both, relation.used, mode=request.mode)
            if not ours.is_scan and is_bulk_read(plan.planning):  # Spark's own reader goes on reading it
                return None
            wire = wire_schema(table.schema, plan.columns)
        register(self._spark)
        where = None if both is None else encode_predicate(both)
        loaded = load(self._spark, replace(request, where=where), spark_schema(wire))
        read, types = catalyst.types_of(catalyst.analyzed_plan(loaded)), catalyst.types_of(relation.node)
        return loaded if all(types[name] == kind for name, kind in read.items()) else None


# -- files that are not live ------------------------------------------------------------------------------------------


def _stale_read(plan: Any) -> NotReadableError | None:
    """The error for a query, by the leaves of its optimized plan, of which one is a folder of Parquet files that Spark
    listed, and the table there has replaced or removed some of these files, or has deleted rows of them; None if there
    is no such leaf. Files that no version of the table contains are no error: other writers added them, and Spark's
    answer is what the folder contains."""
    for leaf in catalyst.leaves_of(plan):
        listed = ListedFiles.of(leaf) if relation_of(leaf) is None else None
        for folder in [] if listed is None else _folders(listed):
            stale = _stale_below(folder, listed)  # type: ignore[arg-type]
            if stale:
                return NotReadableError(
                    f"{local_path(folder)}: Spark would read {len(stale):,} files of this folder that the table has "
                    f"replaced, removed or deleted rows of ({stale[0]}, for one), and return rows that are not in the "
                    "table; query the table by sks.view(spark, name, path), sks.scan or sks.read_parquet",
                    paths=stale,
                )
    return None


def _folders(listed: ListedFiles) -> list[str]:
    """The folders that may be those of tables. A partition's folder belongs to a table above it. Single files that the
    caller named are the caller's choice, and no listing of a folder."""
    found = {_place(path) for path, _, _ in listed.files}
    folders = set()
    for root in listed.roots:
        if _place(root) in found:
            if listed.path is None or not _PATTERN.search(listed.path):
                continue
            root = root.rpartition("/")[0]
        while "=" in root.rpartition("/")[2]:
            root = root.rpartition("/")[0]
        folders.add(root)
    return sorted(folders)


def _below(folder: str, listed: ListedFiles) -> _Listed:
    prefix = f"{_place(folder)}/"
    places = ((_place(path), size, ms) for path, size, ms in listed.files)
    return {(path.removeprefix(prefix), size, ms) for path, size, ms in places if path.startswith(prefix)}


def _stale_below(folder: str, listed: ListedFiles) -> list[str]:
    try:
        table = open_table(local_path(folder))
    except SkipstoneError:
        return []  # no table, or one whose index is elsewhere
    with table:
        below, live = _below(folder, listed), _live(table)
        return [] if below <= live else _stale(below, live, table)


def _live(table: Table) -> _Listed:
    """The live files whose rows are the table's, of the size and time (to the millisecond) that they had when they were
    indexed: not older bases of file groups, files with deletes, or logs."""
    units = table.scan().planning.pruned.units
    return _identities(units.files.filter(from_numpy(units.exact[units.unit_of])))


def _identities(files: Any) -> _Listed:
    names = ("path", "size_bytes", "modified_ns")
    rows = zip(*(files.column(name).to_pylist() for name in names), strict=True)
    return {(path, size, (modified or -1) // 1_000_000) for path, size, modified in rows}


def _stale(listed: _Listed, live: _Listed, table: Table) -> list[str]:
    """The listed files whose rows are not those of the table."""
    handle = table.handle
    live_paths = {path for path, *_ in live}
    others = {path for path, *_ in listed} - live_paths
    if handle.log is not None:  # its owner lists the live files
        return sorted(others)
    snapshot = handle.snapshot
    inexact = set(snapshot.rows(snapshot.numbers(None), ["path"]).column("path").to_pylist()) - live_paths
    replaced = {path for path, *_ in (listed & _identities(snapshot.removed_files())) - live}
    return sorted(replaced | {path for path in others if path in inexact or is_own_file(path, snapshot)})


def _place(path: str) -> str:
    """A path of Hadoop's without its scheme, for comparisons: it is written with one, two or three slashes."""
    return path.partition(":")[2].lstrip("/")
