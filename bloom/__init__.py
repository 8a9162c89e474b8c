"""Hashing and bloom filters.

SplitBlockFilter     one filter, with Parquet's blocks, salts and block choice
FilterGroup          many, transposed, so that one range read answers for all
hash_array, hash_raw the hashes that they hold
solve_blocks, fpp_of their sizes
DistinctCounter      how many values they must be sized for
"""

from .distinct_counter import DistinctCounter
from .group import FilterGroup, GroupPart, bucket_of, probe_rows
from .hashing import HashedValues, distinct, hash_array, hash_raw
from .sizing import fpp_of, plan_groups, plan_rungs, solve_blocks, solve_exact_blocks
from .split_block import SplitBlockFilter

__all__ = [
    "DistinctCounter",
    "FilterGroup",
    "GroupPart",
    "HashedValues",
    "SplitBlockFilter",
    "bucket_of",
    "distinct",
    "fpp_of",
    "hash_array",
    "hash_raw",
    "plan_groups",
    "plan_rungs",
    "probe_rows",
    "solve_blocks",
    "solve_exact_blocks",
]
