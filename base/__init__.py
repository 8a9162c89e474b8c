"""Helpers for all packages. They import only `errors` of Skipstone.

arrays          Arrow arrays, their buffers and numpy
canon           values in one form: equal values have one code, one hash, one order
ordered_keys    tuples of typed values as keys whose bytes order as the values do
lazy            names and kernels that are loaded when they are first used
compiling       kernels: compiled by numba, cached on disk
caching         a cached property without a lock
forks           hooks that make a fork wait for imports and for DuckDB
versions        the differences between versions of pyarrow, numpy and DuckDB
"""
