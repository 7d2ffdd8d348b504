"""From audio to a task, and from a model to word errors.

May import record, data, models, core, support, errors: neither strategies nor runtime, so that
speech knows nothing of who trains.
"""
