"""What executors do for `lookup` (see `key_lookup`): read the rows that an index returned, and of files that it does
not cover those whose keys are among the keys."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ..base.arrays import from_numpy, null_as_false
from ..engine.parquet.leaves import leaf_array
from ..engine.predicates import Node
from ..engine.predicates.rows import matches
from ..engine.scan.file_tasks import ReadContext
from ..engine.scan.keys import KeySet
from .jobs import Batches, parts_in
from .shares import rows_of_shares
from .wire_types import wire_batches


@dataclass(frozen=True)
class KeyRows:
    """Parts, lists of shares, to rows in the wire types.

    context      of the columns to return, of the key and of the condition
    keys         that each row is compared with; None if the index covers all files
    condition    a bound predicate that each row is tested by, or None
    wire         the columns to return
    """

    context: ReadContext
    keys: KeySet | None
    condition: Node | None
    wire: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        for _, shares in parts_in(batches):
            for path, rows in rows_of_shares(self.context, shares):
                if self.keys is not None:
                    rows = rows.filter(from_numpy(self.keys.contains([leaf_array(rows, n) for n in self.keys.columns])))
                if self.condition is not None:
                    rows = rows.filter(null_as_false(matches(self.condition, rows)))
                yield from wire_batches(rows.select(self.wire.names), self.wire, path)
