"""Where real learners come from: our launcher, torchrun on several hosts, a script of one's own.

May import runtime.real, runtime.net and what lies below.
"""
