"""Partition values as text: `year=2013/month=1` in a path, and the typed values that it stands for.

In go paths or values, out come partition texts and Arrow columns. Begin at `hive.py`; `hive_types.py` infers the types,
`log_values.py` spells the values of partitions that a log reports.
"""
