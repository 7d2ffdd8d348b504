"""Learners on a Ray cluster: `hocket train --engine ray`.

Ray places each learner as an actor with its resources, and starts it anew elsewhere if its node is
lost. Launcher and learner talk as in `guests`; `learner.py` is what runs in an actor,
`ray_launcher.py` the launcher. May import whatever runtime.launch may; `ray` itself is imported
only when it is used.
"""
