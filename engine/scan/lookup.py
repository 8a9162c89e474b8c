"""Many keys looked up at once: joined against a secondary index, which gives the rows, so that only these are read.

    keys -> ranges of statistics -> rows by the index; where it covers no file, or the keys say more than its own, the
    key's columns are read and compared -> the other columns of those rows

The plan that comes out is one as any other, of the very rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...arrays import concatenated, to_numpy
from ...errors import SchemaError
from ..indexes.secondary_reader import Positions, SecondaryReader
from ..ingest.footers import leaf_types
from ..kinds import known_kind
from ..manifest.snapshot import Snapshot
from ..predicates import Constant
from ..timeline import IndexState
from .by_slices import covered_files
from .fine import RowGroups
from .key_set import KeySet, key_set, keys_table
from .plan import Plan
from .pruned import Pruned
from .row_sets import RowsOf
from .tasks import FileTask
from .units import units_of
