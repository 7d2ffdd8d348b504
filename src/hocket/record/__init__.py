"""What a run leaves on disk and shows: run directory, checkpoints, metrics, display, result.

May import core, support, errors. Who computes what is written down is not known here.
"""
