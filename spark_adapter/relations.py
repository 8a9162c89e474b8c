"""The relations of a DataFrame's plan that Skipstone loaded, also below joins, filters and subqueries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..engine.open import open_table
from ..errors import InvalidArgumentError
from . import catalyst
from .options import Request
from .source import SkipstoneSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The option of Spark's Parquet reader, which keeps it and does not use it: the options of the scan that it reads, as
# JSON.
REQUEST_OPTION = "skipstone.request"


def check_frame(frame: object, verb: str) -> None:
    """Raise InvalidArgumentError for anything but a DataFrame."""
    if not hasattr(frame, "sparkSession"):
        raise InvalidArgumentError(f"{verb}() accepts a DataFrame, not {frame!r}")


@dataclass(frozen=True)
class Relation:
    """One load. `leaf` is its node in the JVM's plan."""

    options: dict[str, str]
    leaf: Any

    @property
    def is_scan(self) -> bool:
        """False for a load by Spark's own Parquet reader."""
        return REQUEST_OPTION not in self.options

    def request(self) -> Request:
        """The scan, by either reader."""
        return Request.from_options(self.options if self.is_scan else json.loads(self.options[REQUEST_OPTION]))

    def pinned_request(self) -> Request:
        """The scan, at the version that it reads."""
        request = self.request()
        return request if request.version is not None else catalyst.python_source_of(self.leaf).request

    def table_id(self) -> str:
        """The id of the table that it reads."""
        request = self.request()
        opened = open_table(request.path, index_path=request.index_path, storage_options=request.storage_options)
        with opened as table:
            return table.handle.instant.table_id

    def version(self) -> int:
        """The version that it reads."""
        version = self.pinned_request().version
        assert version is not None
        return version


def relation_of(leaf: Any) -> Relation | None:
    """The relation that a leaf of the JVM's plan is; None for those of others."""
    load = catalyst.load_options(leaf, (REQUEST_OPTION,))
    if load is None:
        return None
    source, options = load
    return Relation(options, leaf) if source.lower() == SkipstoneSource.name() or REQUEST_OPTION in options else None


def find_relations(frame: DataFrame) -> Iterator[Relation]:
    """Each relation of ours in the plan of a DataFrame of a classic session."""
    for leaf in catalyst.leaves_of(catalyst.analyzed_plan(frame)):
        relation = relation_of(leaf)
        if relation is not None:
            yield relation


def single_relation(frame: DataFrame) -> Relation | None:
    """The scan that a DataFrame of a classic session consists of; None if there is more to its plan."""
    relation = relation_of(catalyst.analyzed_plan(frame))
    return relation if relation is not None and relation.is_scan else None


def has_unpushed_filter(frame: DataFrame) -> bool:
    """Whether Spark filters, right above it, a scan that has no predicate of its own."""
    for leaf in catalyst.filtered_leaves(catalyst.optimized_plan(frame)):
        relation = relation_of(leaf)
        request = None if relation is None else relation.request()
        if request is not None and request.where is request.predicate is request.residual is None:
            return True
    return False
