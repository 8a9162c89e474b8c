"""Parquet's own bytes.

Footers become schemas and statistics (`footers.py`, `column_stats.py`); rows are cast to a table's types only where
nothing is lost (`exact_cast.py`); few rows are read by their pages alone (`pages.py`, `page_headers.py`,
`synthetic_file.py`). No index and no version is known here.
"""
