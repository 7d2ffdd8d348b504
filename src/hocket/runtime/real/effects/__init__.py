"""How a real rank answers effects: gradients, collectives, stages of a model.

Each module is a part of the table of handlers that `process.py` and `rank.py` put together. May
import whatever runtime.real may.
"""
