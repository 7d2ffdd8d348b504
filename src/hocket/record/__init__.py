"""What a run leaves on disk and shows: run directory, checkpoints, metrics, display, result.

May import core, support, errors. It does not know who computes what is recorded.
"""
