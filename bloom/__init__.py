"""Hashing and bloom filters.

SplitBlockFilter     one filter, with Parquet's blocks, salts and block choice
SplitBlockBuilder    one of values that come a few at a time
FilterGroup          many, transposed, so that one range read answers for all
hash_array, hash_raw the hashes that they hold
solve_blocks, cheapest_blocks, fpp_of
                     their sizes
DistinctCounter      how many values they must be sized for
"""

from .group import FilterGroup, GroupPart, bucket_of, probe_rows
from .hashing import HashedValues, distinct, hash_array, hash_raw
from .probes import Probes, answers_together, probes_for
from .sizing import DistinctCounter, cheapest_blocks, fpp_of, plan_groups, plan_rungs, solve_blocks, solve_exact_blocks
from .split_block import (
    SplitBlockBuilder,
    SplitBlockFilter,
    estimated_keys,
    fold_words,
    insert_hashes,
    measured_fpp,
    replicate_words,
)

__all__ = [
    "DistinctCounter",
    "FilterGroup",
    "GroupPart",
    "HashedValues",
    "Probes",
    "SplitBlockBuilder",
    "SplitBlockFilter",
    "answers_together",
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
    "plan_groups",
    "plan_rungs",
    "probe_rows",
    "probes_for",
    "replicate_words",
    "solve_blocks",
    "solve_exact_blocks",
]
