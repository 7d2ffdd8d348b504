"""Helpers without a subject of their own: processes, progress, files. May import errors only."""
