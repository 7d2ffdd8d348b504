"""Models that no rank holds as a whole: their stages, how they are scored and saved.

May import what `runtime.shared` may.
"""
