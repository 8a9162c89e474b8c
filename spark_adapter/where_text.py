"""SQL text away from a session: in options of a source, in executors.

SparkPredicate            what a session's Spark means by a text or a Column; it pickles, and is an option's text
text_predicate(text)      of text that means one thing whatever a session says; other text is refused
where_of(request)         the predicate of a load
where_node(where, schema) a predicate as `Table.scan` takes it
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..engine.predicates import Node
from ..errors import PredicateError
from .column_tree import Opaque, Tree
from .from_columns import from_tree, text_tree
from .options import PREDICATE_PREFIX, Request, decode_predicate, encode_predicate
from .spark_semantics import Session

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SparkPredicate:
    """A predicate that `predicate` made of a text or a Column, with the settings of its session. It pickles; `str` of
    it is what option `where` takes: `.option("where", made)`."""

    tree: Tree
    session: Session
    source: str = field(default="", compare=False)

    def node(self, schema: pa.Schema) -> Node:
        """What it means over a table of this schema; a part that is not understood is Unknown.

        Raises PredicateError for a name that is not in the table.
        """
        return from_tree(self.tree, schema, self.session)

    def __str__(self) -> str:
        return PREDICATE_PREFIX + encode_predicate(self)

    def __repr__(self) -> str:
        return f"<predicate of Spark: {self.source}>"


def text_predicate(text: str, time_zone: str | None = None, case_sensitive: bool | None = None) -> SparkPredicate:
    """What Spark means by a text in any session, or in those of this time zone and case sensitivity. Its `node` raises
    PredicateError, with the way out, where the text depends on what is not given: the zone, the case of names, ANSI.

    Raises PredicateError for a text that is no SQL, or that Spark's parser may read otherwise than ours.
    """
    tree = text_tree(text)
    if isinstance(tree, Opaque) and tree.text == text:
        raise PredicateError(
            f"{text}: {tree.reason}, so a session's parser must read it: make the predicate where the session is, by "
            "sks.predicate(spark, text) or sks.scan"
        )
    return SparkPredicate(tree, Session(time_zone, case_sensitive), text)


def where_node(where: object, schema: pa.Schema) -> object:
    """A predicate of any form but a Column, as `Table.scan` takes it; a text as `text_predicate` reads it."""
    if isinstance(where, str):
        where = text_predicate(where)
    return where.node(schema) if isinstance(where, SparkPredicate) else where


def where_of(request: Request) -> Node | SparkPredicate | None:
    """The predicate of a load. Raises PredicateError as `text_predicate`, and for a pickle that is none of ours."""
    if request.predicate is not None:
        return decode_predicate(request.predicate)
    return None if request.where is None else text_predicate(request.where, request.time_zone, request.case_sensitive)
