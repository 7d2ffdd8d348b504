"""What learners draw from: the pool, the ledger that accounts for it, the synthetic task."""
