"""One file per claim: what is claimed, the runs that test it, and how they are judged.

`hocket.reproduce` says how to add one. May import what `hocket.reproduce` may; no claim imports
another one.
"""
