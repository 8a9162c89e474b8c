"""The relations of a DataFrame's plan that Skipstone loaded, also below joins, filters and subqueries.

In a classic session the plan is in the JVM. Over Spark Connect the client's own part of it is searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..engine.open import open_table
from ..errors import InvalidArgumentError
from . import catalyst, connect
from .options import Request
from .source import SkipstoneSource
from .spark_versions import IS_SPARK_4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Options that we give to Spark's Parquet reader: Spark keeps them, and uses none.
TABLE_OPTION, VERSION_OPTION = "skipstone.table", "skipstone.version"
REQUEST_OPTION = "skipstone.request"  # of a scan that this reader reads: its own options, as JSON
PRUNED_OPTION = "skipstone.pruned"  # of another read: the scan that chose its files
_NATIVE_OPTIONS = (TABLE_OPTION, VERSION_OPTION, REQUEST_OPTION, PRUNED_OPTION)


def check_frame(frame: object, verb: str) -> None:
    """Raise InvalidArgumentError for anything but a DataFrame."""
    if not hasattr(frame, "sparkSession"):
        raise InvalidArgumentError(f"{verb}() takes a DataFrame, not {frame!r}")


@dataclass(frozen=True)
class Relation:
    """One load. `leaf` is its node in the JVM's plan; None over Spark Connect."""

    options: dict[str, str]
    leaf: Any = None

    @property
    def is_scan(self) -> bool:
        """False for a load by Spark's own reader: by `read_parquet`, or of a scan."""
        return TABLE_OPTION not in self.options

    def request(self) -> Request | None:
        """The request of a scan, whoever reads it; None of `read_parquet`."""
        if self.is_scan:
            return Request.from_options(self.options)
        options = self.options.get(REQUEST_OPTION)
        return None if options is None else Request.from_options(json.loads(options))

    def explained(self) -> Request | None:
        """The request that `explain` explains: also that of `read_parquet`, and of a folder that `optimized` prunes."""
        options = self.options.get(PRUNED_OPTION)
        return self.request() if options is None else Request.from_options(json.loads(options))

    def pinned_request(self) -> Request:
        """The request of a scan in a JVM's plan, at the version that it reads."""
        request = self.request()
        assert request is not None
        return request if request.version is not None else catalyst.python_source_of(self.leaf).request

    def table_id(self) -> str:
        """The id of the table that it reads."""
        if not self.is_scan:
            return self.options[TABLE_OPTION]
        request = Request.from_options(self.options)
        opened = open_table(request.path, index_path=request.index_path, storage_options=request.storage_options)
        with opened as table:
            return table.handle.instant.table_id

    def version(self) -> int:
        """The version that it reads.

        Raises InvalidArgumentError over Spark Connect, where the server chooses a version at each action, unless `scan`
        or option version named one.
        """
        named = self.options.get("version" if self.is_scan else VERSION_OPTION)
        if named is None and self.leaf is not None:
            return catalyst.python_source_of(self.leaf).version
        if named is None:
            raise InvalidArgumentError(
                "which version this DataFrame reads is not known to a client of Spark Connect: load it by scan(), or "
                "give read_version="
            )
        return int(named)


def relation_of(leaf: Any) -> Relation | None:
    """The relation that a leaf of the JVM's plan is; None for those of others."""
    load = catalyst.load_options(leaf, _NATIVE_OPTIONS)
    return None if load is None else _relation(*load, leaf)


def _relation(source: str, options: dict[str, str], leaf: Any = None) -> Relation | None:
    is_ours = source.lower() == SkipstoneSource.name() or TABLE_OPTION in options
    return Relation(options, leaf) if is_ours else None


def find_relations(frame: DataFrame) -> Iterator[Relation]:
    """Each relation of ours in a DataFrame's plan."""
    if catalyst.is_classic(frame.sparkSession):
        found = [relation_of(leaf) for leaf in catalyst.leaves_of(catalyst.analyzed_plan(frame))]
    else:
        found = [_relation(*load) for load in connect.loads_in(frame)]
    yield from (relation for relation in found if relation is not None)


def single_relation(frame: DataFrame) -> Relation | None:
    """The scan that a DataFrame consists of; None if there is more to its plan."""
    if catalyst.is_classic(frame.sparkSession):
        relation = relation_of(catalyst.analyzed_plan(frame))
    else:
        load = connect.single_load(frame)
        relation = None if load is None else _relation(*load)
    return relation if relation is not None and relation.is_scan else None


def has_unpushed_filter(frame: DataFrame) -> bool:
    """Whether Spark filters, right above it, a scan that has no predicate of its own; False over Spark Connect."""
    if not catalyst.is_classic(frame.sparkSession):
        return False
    for leaf in catalyst.filtered_leaves(catalyst.optimized_plan(frame)):
        relation = relation_of(leaf)
        request = None if relation is None else relation.request()
        if request is not None and request.where is request.predicate is request.residual is None:
            return True
    return False


def opaque_part(frame: DataFrame) -> str | None:
    """The first part of a DataFrame's plan that cannot be searched here; None if all can."""
    if not catalyst.is_classic(frame.sparkSession):
        return connect.opaque_part(frame)
    is_hidden = not IS_SPARK_4 and catalyst.reads_by_map_in_arrow(frame)
    return "mapInArrow, by which scan() reads before PySpark 4" if is_hidden else None
