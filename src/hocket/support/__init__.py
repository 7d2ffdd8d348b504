"""Helpers without a subject of their own: processes, signals, progress, files, text.

May import errors only.
"""
