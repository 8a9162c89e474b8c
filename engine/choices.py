"""The words that arguments take, as types: an editor completes them, and a type checker refuses another. What is given
at run time is checked where it is used."""

from __future__ import annotations

from typing import Literal

CacheLevel = Literal["coarse"]
Curve = Literal["linear", "zorder", "hilbert"]
Fallback = Literal["list"]
IndexKindName = Literal["stats", "bloom", "secondary", "ngram"]
Maintenance = Literal["commit", "refresh"]
NewColumns = Literal["adopt", "report"]
NewTypes = Literal["widen", "quarantine"]
OnStale = Literal["warn", "sync", "raise", "ignore"]
OnMisfit = Literal["raise", "quarantine"]
Overwritten = Literal["all", "written"]
Reader = Literal["auto", "pyarrow", "duckdb"]
Refresh = Literal["sync"]
SaveMode = Literal["append", "overwrite"]
ScanMode = Literal["snapshot", "read_optimized"]
ShardSize = Literal["small", "medium", "large"]
TableSource = Literal["directory", "delta", "iceberg", "hudi"]
