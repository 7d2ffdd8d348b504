"""All learners in one process on a virtual clock: simulator, cost model, replay of real runs.

May import runtime.shared and what lies below; never real processes or the network.
"""
