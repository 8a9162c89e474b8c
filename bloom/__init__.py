"""Hashing and Bloom filters.

Arrow arrays become 64-bit hashes (`hashing`, after `canon`). Hashes become filters. Values to look up become the hashes
to look up (`probes`). Start with `filter`. Each module imports only from those before it:

    numpy_filter    the filter in numpy; `kernels`, the same in compiled code, which `base.lazy` loads
    hashing         hash_array (equal values have equal hashes), hash_raw (as in Parquet's own filters)
    probes          Probes: the hashes of a value; probe_rows: look-ups in the rows of a group
    sizing          solve_blocks, fpp_of: sizes and false-positive probabilities
    filter          SplitBlockFilter: one filter, bits as in Parquet
    group           FilterGroup: many filters, transposed, so that one range read serves all of them
"""

from __future__ import annotations

from ..base.lazy import exports_of, names_from

_HOMES = exports_of(__name__)

__all__ = list(_HOMES)
__getattr__ = names_from(__name__, _HOMES)
