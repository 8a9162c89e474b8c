"""Hashing and Bloom filters.

Arrow arrays become 64-bit hashes (`hashing`, after `canon`). Hashes become filters. Values to look up become the hashes
to probe with (`probes`). Start with `filter`. Each module imports only from those before it:

    numpy_filter    the filter in numpy; `kernels`, the same in compiled code, which `base.lazy` loads
    hashing         hash_array (equal values have equal hashes), hash_raw (as Parquet's own filters do)
    probes          Probes: the hashes of a value; probe_rows: those of a value in the rows of a group
    sizing          solve_blocks, solve_exact_blocks, fpp_of: sizes and false-positive probabilities
    filter          SplitBlockFilter: one filter, bits as in Parquet
    group           FilterGroup: many filters, transposed, so that one range read answers for all
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy import names_from
from .hashing import HashedValues, distinct, hash_array, hash_raw
from .probes import Probes, bucket_of, probe_rows, probe_together, probes_for

if TYPE_CHECKING:
    from .filter import (
        SplitBlockFilter,
        estimated_keys,
        fold_words,
        insert_hashes,
        measured_fpp,
        replicate_words,
    )
    from .group import FilterGroup, GroupPart
    from .sizing import cheapest_blocks, fpp_of, plan_sizes, solve_blocks, solve_exact_blocks

# Modules that only builders need are loaded when they are first used.
_HOMES = {
    **dict.fromkeys(("FilterGroup", "GroupPart"), ".group"),
    **dict.fromkeys(("cheapest_blocks", "fpp_of", "plan_sizes", "solve_blocks", "solve_exact_blocks"), ".sizing"),
    **dict.fromkeys(("SplitBlockFilter", "estimated_keys", "fold_words"), ".filter"),
    **dict.fromkeys(("insert_hashes", "measured_fpp", "replicate_words"), ".filter"),
}

__all__ = [
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
    "plan_sizes",
    "probe_rows",
    "probe_together",
    "probes_for",
    "replicate_words",
    "solve_blocks",
    "solve_exact_blocks",
]


__getattr__ = names_from(__name__, _HOMES)
