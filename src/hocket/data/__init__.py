"""What is drawn: the pool of items, the ledgers that account for them, synthetic data.

May import core, models, support, errors. Nothing here communicates: shared counters are handed in.
"""
