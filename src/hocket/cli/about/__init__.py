"""What `hocket` says about itself: lists, and the page of one method, for a terminal.

`listing.py` has the lists, `method.py` the page; `docstring.py` lays out a docstring, `fields.py`
finds the comments beside fields. May import what `cli` may.
"""
