"""The optimized plan of a query with its relations loaded anew, by the filters and columns that stand right above them.

    rewritten(frame)            the same rows; what `optimized` returns
    with_ids_of(frame, other)   another DataFrame under the ids of one's columns

Catalyst pushes filters down to each relation of a query, those that follow from joins included. Its optimized plan is
read here: a relation of ours, with the filters right above it, is loaded anew with these as its predicate, and with the
columns that are used. The filters stay, so that Spark tests the rows; a part that is not understood prunes nothing.

    Project [k]                         Project [k]
    +- Filter (u = 'u7')                +- Filter (u = 'u7')
       +- relation of ours                 +- Project [k, u under the names and ids that the plan knows]
                                              +- relation of ours, where u = 'u7', of columns k and u

These are private faces of Spark (py4j, Catalyst's classes). Where one is not as it is expected, a query is left as it
is, with a warning: it reads more, and returns the same.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..engine.open import open_pair, open_table
from ..engine.predicates import And, Constant, Node, bind
from ..errors import SkipstoneError
from .catalyst_tree import children_of, parts_of, tree_of_expression
from .from_columns import from_tree, without_unknowns
from .loads import Load, load_of, pinned_request
from .metadata_answers import answers, asked_of
from .options import encode_predicate, local_path
from .parquet_reader import read_files, reads_much
from .pushdown_guard import without_old_times
from .scanning import register
from .sessions import session_of
from .source import SkipstoneSource
from .where_text import where_node, where_of
from .wire_types import spark_schema, wire_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from .options import Request

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_FILE_STATUS = re.compile(r"FileStatus\{path=(.*?); isDirectory=false; length=(\d+);[^{}]*?; modification_time=(\d+);")
_NULLABLE = re.compile(r'"(?:nullable|containsNull|valueContainsNull)":(?:true|false)')


def rewritten(frame: DataFrame) -> DataFrame:
    """The same rows, read by their filters; the frame itself where nothing can be skipped, or, with a warning, where
    its plan is not understood."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()
    rewriting = _Rewriting(frame.sparkSession)
    try:
        new = rewriting.rewrite(plan)
        return _frame_of(frame, new) if rewriting.is_changed else frame
    except Exception as error:  # of a version of Spark with other insides
        warnings.warn(
            f"this query is left as it is, and skips nothing by its filters: {type(error).__name__}: {error}",
            stacklevel=3,
        )
        return frame


def _frame_of(frame: DataFrame, plan: Any) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame

    spark: Any = frame.sparkSession
    dataset = getattr(spark._jvm, "org.apache.spark.sql.classic.Dataset").ofRows(spark._jsparkSession, plan)
    dataset.queryExecution().optimizedPlan()  # raises what Spark has against it
    before, after = (_NULLABLE.sub("", each.schema().json()) for each in (frame._jdf, dataset))
    if before != after:  # but for what the optimizer knows to hold no null
        raise TypeError("the rewritten plan has other columns")
    return DataFrame(dataset, spark)


def with_ids_of(frame: DataFrame, other: DataFrame) -> DataFrame:
    """Another DataFrame of the same columns, in which `frame["k"]` names its own."""
    spark, plans = frame.sparkSession, [each._jdf.queryExecution().analyzed() for each in (frame, other)]
    wanted, given = (_items(plan.output()) for plan in plans)
    if all(one.exprId().equals(another.exprId()) for one, another in zip(given, wanted, strict=True)):
        return other
    return _frame_of(frame, _under_ids(spark, plans[1], zip(given, wanted, strict=True)))


@dataclass(frozen=True)
class _Leaf:
    """A relation, with what stands right above it. `used`: the columns that are read of it, by name."""

    node: Any
    conditions: list[Any]
    used: list[str]


class _Rewriting:
    """One pass over an optimized plan."""

    def __init__(self, spark: Any):
        self._spark, self._jvm = spark, spark._jvm
        self._settings = session_of(spark)
        self.is_changed = False

    def rewrite(self, node: Any) -> Any:
        """The plan with each relation loaded anew; the node itself where nothing below it changes."""
        if _depends_on_places(node):
            return node
        leaf = _leaf_below(node)
        if leaf is not None:
            loaded = self._loaded(leaf)
            return self._above(node, leaf.node, leaf.node if loaded is None else self._project(leaf, loaded))
        answered = self._answered(node) if node.getClass().getSimpleName() == "Aggregate" else None
        if answered is not None:
            return answered
        children = children_of(node)
        rewritten = [self.rewrite(child) for child in children]
        if any(new is not old for new, old in zip(rewritten, children, strict=True)):
            node = node.withNewChildren(_sequence(self._jvm, rewritten))
        return self._with_subqueries(node)

    def _answered(self, node: Any) -> Any:
        """The one row of an aggregate of a whole relation of ours; None where its metadata do not decide it."""
        leaf = _leaf_below(children_of(node)[0])
        load = None if leaf is None or leaf.conditions else _load_of(leaf.node)
        asked = None if leaf is None or load is None else asked_of(node, leaf.node)
        values = None if load is None or not asked else answers(pinned_request(load), asked)
        if values is None:
            return None
        self.is_changed = True
        frame: Any = type(self._spark).sql(self._spark, "SELECT 1").select(*values)
        plan = frame._jdf.queryExecution().analyzed()
        return _under_ids(self._spark, plan, zip(_items(plan.output()), _items(node.output()), strict=True))

    def _with_subqueries(self, node: Any) -> Any:
        """A node whose own expressions' subqueries are rewritten: scalar ones, the others became joins."""
        if not node.subqueries().size():
            return node
        changed = getattr(getattr(self._jvm, "scala.collection.immutable.Map$"), "MODULE$").empty()
        for expression in _subqueries_of(_items(node.expressions())):
            plan = expression.plan()
            new = self.rewrite(plan)
            if new is not plan:
                changed = changed.updated(expression, expression.withNewPlan(new))
        # A map is a partial function to Scala.
        return node.transformExpressions(changed) if changed.size() else node

    def _project(self, leaf: _Leaf, loaded: DataFrame) -> Any:
        """The loaded relation, its columns under the names and ids that the plan knows."""
        self.is_changed = True
        plan = loaded._jdf.queryExecution().analyzed()
        given = {each.name(): each for each in _items(plan.output())}
        columns = [(given[each.name()], each) for each in _items(leaf.node.output()) if each.name() in leaf.used]
        return _under_ids(self._spark, plan, columns)

    def _above(self, node: Any, leaf: Any, new: Any) -> Any:
        if node.equals(leaf):
            return new
        (child,) = children_of(node)
        above = self._above(child, leaf, new)
        return self._with_subqueries(node if above is child else node.withNewChildren(_sequence(self._jvm, [above])))

    # -- a relation, loaded anew --------------------------------------------------------------------------------------

    def _loaded(self, leaf: _Leaf) -> DataFrame | None:
        """The relation under its conditions, as a load of its own; None where it is not ours, or gains nothing."""
        load = _load_of(leaf.node)
        if load is not None:
            return self._scanned(leaf, load)
        is_file = leaf.node.getClass().getSimpleName() == "LogicalRelation"
        return self._parquet(leaf) if is_file and load_of(leaf.node) is None else None

    def _scanned(self, leaf: _Leaf, load: Load) -> DataFrame | None:
        request = pinned_request(load)
        if request.first_rows is not None:  # a filter above chooses among the first rows
            return None
        place = request.path, request.version, request.log_position, request.index_path, request.storage_options
        with open_pair(*place) as table:
            node = self._predicate(leaf, table.schema)
            everything = [each.name() for each in _items(leaf.node.output())]
            if node is None and (leaf.used == everything or not load.is_scan):
                return None
            before = where_node(where_of(request), table.schema)
            wanted = [each for each in (before, node) if isinstance(each, Node)]
            both = None if not wanted else wanted[0] if len(wanted) == 1 else And(tuple(wanted))
            plan = table.scan(both, leaf.used)
            if not load.is_scan and reads_much(plan.planning):  # what was handed over stays so
                return None
            wire = wire_schema(table.schema, plan.columns)
        return self._load(replace(request, where=None, predicate=_encoded(both), columns=None), wire)

    def _load(self, request: Request, wire: pa.Schema) -> DataFrame:
        register(self._spark)
        reader = self._spark.read.format(SkipstoneSource.name()).schema(spark_schema(wire))
        return reader.options(**request.to_options()).load()

    def _predicate(self, leaf: _Leaf, schema: pa.Schema) -> Node | None:
        """What the conditions mean, as far as it is understood; None where nothing is."""
        nodes = [from_tree(tree_of_expression(each), schema, self._settings) for each in leaf.conditions]
        kept = [node for node in map(without_unknowns, nodes) if node != Constant(True)]
        return None if not kept else kept[0] if len(kept) == 1 else And(tuple(kept))

    # -- Spark's own relations of Parquet files -----------------------------------------------------------------------

    def _parquet(self, leaf: _Leaf) -> DataFrame | None:
        relation = leaf.node.relation()
        if relation.getClass().getSimpleName() != "HadoopFsRelation":
            return None
        if relation.fileFormat().getClass().getSimpleName() != "ParquetFileFormat" or not leaf.conditions:
            return None
        location = relation.location()
        if location.getClass().getSimpleName() != "InMemoryFileIndex" or location.rootPaths().size() != 1:
            return None
        if set(dict(_scala_map(relation.options()))) - {"path"}:
            return None  # one may choose files, or read them otherwise
        root = local_path(location.rootPaths().apply(0).toString())
        try:
            table = open_table(root)
        except SkipstoneError:
            return None
        with table:
            node = self._predicate(leaf, table.schema)
            if node is None or not set(leaf.used) <= set(table.schema.names):
                return None
            if not self._has_the_files_of(location, table):
                warnings.warn(
                    f"{root}: Spark would read other files than the index knows, so this query skips none of them; "
                    "sync the table, or read it by sks.read_parquet()",
                    stacklevel=5,
                )
                return None
            safe = without_old_times(bind(node, table.schema))
            loaded = read_files(self._spark, root, table, table.scan(safe, leaf.used))
        types = {each.name(): each.dataType().json() for each in _items(leaf.node.output())}
        same = all(types[each.name()] == each.dataType().json() for each in _items(loaded._jdf.schema().toSeq()))
        return loaded if same else None

    def _has_the_files_of(self, location: Any, table: Any) -> bool:
        """Whether Spark listed the live files of a table, of the size and time (to the millisecond) that they had when
        they were indexed."""
        listed = location.allFiles()
        statuses = _FILE_STATUS.findall(listed.mkString("\n"))  # one call, not three for each file
        if len(statuses) != listed.size():
            return False
        snapshot = table.handle.snapshot
        files = snapshot.rows(snapshot.numbers(None), ["path", "size_bytes", "modified_ns"])
        root = location.rootPaths().apply(0).toUri().getPath().rstrip("/")
        live = {
            (f"{root}/{row['path']}".lstrip("/"), row["size_bytes"], (row["modified_ns"] or -1) // 1_000_000)
            for row in files.to_pylist()
        }
        return live == {(path.partition(":")[2].lstrip("/"), int(size), int(ms)) for path, size, ms in statuses}


def _encoded(node: Node | None) -> str | None:
    return None if node is None else encode_predicate(node)


def _load_of(relation: Any) -> Load | None:
    """The scan that a relation of an optimized plan is, handed over or not; None for others."""
    is_source = relation.getClass().getSimpleName() == "DataSourceV2ScanRelation"
    load = load_of(relation.relation() if is_source else relation)
    return None if load is None or load.request() is None else load


def _leaf_below(node: Any) -> _Leaf | None:
    """The relation that stands below a chain of one projection and filters, or below nothing; None for another plan."""
    output, conditions, used = None, [], None
    kind = node.getClass().getSimpleName()
    if kind == "Project":
        used, (node,) = _references(node.projectList()), children_of(node)
        kind = node.getClass().getSimpleName()
    while kind == "Filter" and not _depends_on_places(node):
        conditions += parts_of(node.condition())
        (node,) = children_of(node)
        kind = node.getClass().getSimpleName()
    if kind not in ("DataSourceV2ScanRelation", "LogicalRelation"):
        return None
    output = [each.name() for each in _items(node.output())]
    if used is not None:
        ids = used.union(*(_references_of(each) for each in conditions))
        output = [each.name() for each in _items(node.output()) if each.exprId().toString() in ids]
    return _Leaf(node, conditions, output)


def _depends_on_places(node: Any) -> bool:
    """Whether an operator's result depends on which task gets a row, and in what order: samples, `rand(7)`, numbers of
    rows, functions of Python that are not deterministic. (Aggregates that depend on the order promise nothing.)"""
    kind = node.getClass().getSimpleName()
    if kind in ("Aggregate", "Window"):
        return False
    return kind == "Sample" or any(not each.deterministic() for each in _items(node.expressions()))


def _under_ids(spark: Any, plan: Any, columns: Iterable[tuple[Any, Any]]) -> Any:
    """Columns of a plan, each under the name and id of the attribute beside it."""
    none, empty = spark._jvm.scala.Option.empty(), _sequence(spark._jvm, [])
    alias = getattr(spark._jvm, f"{_EXPRESSIONS}.Alias")
    aliases = [alias(column, each.name(), each.exprId(), empty, none, empty) for column, each in columns]
    project = getattr(spark._jvm, "org.apache.spark.sql.catalyst.plans.logical.Project")
    return project(_sequence(spark._jvm, aliases), plan)


def _sequence(java: Any, items: list[Any]) -> Any:
    listed = java.java.util.ArrayList()
    for item in items:
        listed.add(item)
    return java.org.apache.spark.api.python.PythonUtils.toSeq(listed)


def _subqueries_of(expressions: list[Any]) -> Iterator[Any]:
    """The subqueries that stay expressions in an optimized plan."""
    waiting = list(expressions)
    while waiting:
        expression = waiting.pop()
        if expression.getClass().getSimpleName() == "ScalarSubquery":
            yield expression
        else:
            waiting += children_of(expression)


def _references(expressions: Any) -> set[str]:
    return set().union(*(_references_of(each) for each in _items(expressions)))


def _references_of(expression: Any) -> set[str]:
    return {each.exprId().toString() for each in _items(expression.references().toSeq())}


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _scala_map(options: Any) -> dict[str, str]:
    return {pair._1(): pair._2() for pair in _items(options.toSeq())}
