"""The words all rooms share: effects, learner, strategy, task, flat vectors, accounts.

May import support and errors. No input or output, no process, no clock.
"""
