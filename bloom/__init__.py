"""Hashing and Bloom filters.

Arrow arrays become 64-bit hashes (`hashing`, after `canon`). Hashes become filters. Values to look up become the hashes
to probe with (`probes`). Start with `filter`. Each module imports only from those before it:

    numpy_filter    the filter in numpy; `kernels`, the same in compiled code, which `base.lazy` loads
    hashing         hash_array (equal values have equal hashes), hash_raw (as Parquet's own filters do)
    probes          Probes: the hashes of a value; probe_rows: those of a value in the rows of a group
    sizing          solve_blocks, fpp_of: sizes and false-positive probabilities
    filter          SplitBlockFilter: one filter, bits as in Parquet
    group           FilterGroup: many filters, transposed, so that one range read answers for all
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy import names_from
from .hashing import HashedValues, distinct, hash_array, hash_raw
from .probes import Probes, bucket_of, probe_rows, probe_together, probes_for

if TYPE_CHECKING:
    from .filter import SplitBlockFilter, insert_hashes, measured_fpp
    from .group import FilterGroup, GroupPart
    from .sizing import fpp_of, plan_repeats, plan_sizes, shared_blocks, solve_blocks

# Modules that only builders need are loaded when they are first used.
_HOMES = {
    **dict.fromkeys(("FilterGroup", "GroupPart"), ".group"),
    **dict.fromkeys(("fpp_of", "plan_repeats", "plan_sizes", "shared_blocks", "solve_blocks"), ".sizing"),
    **dict.fromkeys(("SplitBlockFilter", "insert_hashes", "measured_fpp"), ".filter"),
}

__all__ = [
    "FilterGroup",
    "GroupPart",
    "HashedValues",
    "Probes",
    "SplitBlockFilter",
    "bucket_of",
    "distinct",
    "fpp_of",
    "hash_array",
    "hash_raw",
    "insert_hashes",
    "measured_fpp",
    "plan_repeats",
    "plan_sizes",
    "probe_rows",
    "probe_together",
    "probes_for",
    "shared_blocks",
    "solve_blocks",
]

__getattr__ = names_from(__name__, _HOMES)
