"""Reading the user's data: data directories and other sources, splits, audio.

May import core, support, errors.
"""
