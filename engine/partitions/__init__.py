"""Partition values as text in paths, and back.

In go paths or values, out come partition texts and Arrow columns. All of it is `hive.py`: Hive's escaping, the types
that Spark infers, and the spelling of the partitions of a log.
"""
