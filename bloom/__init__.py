"""Hashing and bloom filters.

Arrow arrays flow in and become 64-bit hashes (`hashing`, after `canon`). Hashes become filters, and values to look up
become the hashes to probe with (`probes`). Begin with `split_block`. The modules form a line: each imports from
those before it:

    plain           XXH64 and the filter in Python and numpy; `kernels`, their compiled twins, `skipstone.lazy` loads
    hashing         hash_array (equal values have equal hashes), hash_raw (as Parquet's own filters do)
    probes          Probes: the hashes of a value; probe_rows: those of a value in a group's rows
    sizing          solve_blocks, cheapest_blocks, fpp_of; DistinctCounter: how many values to size for
    split_block     SplitBlockFilter: one filter, bits as in Parquet
    group           FilterGroup: many filters, transposed, so that one range read answers for all
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_from
from .hashing import HashedValues, distinct, hash_array, hash_raw
from .probes import Probes, bucket_of, probe_rows, probe_together, probes_for

if TYPE_CHECKING:
    from .group import FilterGroup, GroupPart
    from .sizing import (
        DistinctCounter,
        cheapest_blocks,
        fpp_of,
        plan_rungs,
        solve_blocks,
        solve_exact_blocks,
    )
    from .split_block import (
        SplitBlockFilter,
        estimated_keys,
        fold_words,
        insert_hashes,
        measured_fpp,
        replicate_words,
    )

# What only builders need is loaded when it is first used.
_HOMES = {
    **dict.fromkeys(("FilterGroup", "GroupPart"), ".group"),
    **dict.fromkeys(("DistinctCounter", "cheapest_blocks", "fpp_of", "plan_rungs"), ".sizing"),
    **dict.fromkeys(("solve_blocks", "solve_exact_blocks"), ".sizing"),
    **dict.fromkeys(("SplitBlockFilter", "estimated_keys", "fold_words"), ".split_block"),
    **dict.fromkeys(("insert_hashes", "measured_fpp", "replicate_words"), ".split_block"),
}

__all__ = [
    "DistinctCounter",
    "FilterGroup",
    "GroupPart",
    "HashedValues",
    "Probes",
    "SplitBlockFilter",
    "bucket_of",
    "cheapest_blocks",
    "distinct",
    "estimated_keys",
    "fold_words",
    "fpp_of",
    "hash_array",
    "hash_raw",
    "insert_hashes",
    "measured_fpp",
    "plan_rungs",
    "probe_rows",
    "probe_together",
    "probes_for",
    "replicate_words",
    "solve_blocks",
    "solve_exact_blocks",
]


__getattr__ = names_from(__name__, _HOMES)
