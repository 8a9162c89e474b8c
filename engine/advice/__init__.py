"""Advice: which index would have let given queries skip how much, and at what cost.

    queries.py    the queries: texts, a file of statements, a log of scans
    trial.py      a scratch index over a sample of the files; candidates are built there and the queries planned
    advise.py     which candidates, and their results: `Advice`, ranked

Nothing is guessed: a candidate is built over the sample, the queries are pruned by it, and what they keep is scaled to
all files. Nothing of the table or its index is changed. Begin with `advise` in `advise.py`.
"""
