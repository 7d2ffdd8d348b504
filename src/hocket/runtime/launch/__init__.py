"""Where real learners come from: our launcher, torchrun on several hosts, a script of the user.

May import runtime.real, runtime.net and the rooms below.
"""
