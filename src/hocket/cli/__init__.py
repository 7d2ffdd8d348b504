"""The command line: one module per group of commands, and what they share.

May import every other room. Only `hocket.__main__` imports it.
"""
