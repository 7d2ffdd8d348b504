"""How bytes travel between real learners: store, sockets, shared memory, agreement on losses.

May import runtime.shared (not the account), codecs, core, support, errors.
"""
