"""One learner in a real process: a run of Hocket's own, or a training loop of the user's.

May import runtime.net, runtime.shared and what lies below; never the simulator.
"""
