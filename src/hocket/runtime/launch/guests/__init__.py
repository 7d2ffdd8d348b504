"""Learners that are not children of the run's launcher: it reaches them over connections.

`line.py` is how both talk, `arrivals.py` where such learners call the launcher, `guest_host.py`
what `hocket join` runs on another host. May import whatever runtime.launch may; `on_ray` builds on
it.
"""
