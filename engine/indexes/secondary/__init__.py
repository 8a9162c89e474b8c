"""The secondary index: in which rows a value stands.

`format.py` describes its keys and values. `task_keys.py` gathers keys while rows are written, `build.py` from files
that are there (`sort.py`: in bounded memory), `merge.py` joins runs. `best_fit.py` chooses which index is asked about
a predicate, `key_ranges.py` what for, and `reader.py` answers.
"""
