"""From audio to a task, and from a model to word errors.

May import record, data, models, core, support, errors: neither strategies nor runtime, so that
speech knows nothing of who trains. Inside, `prepare` puts the rooms in order and `task` is the
seam to training; `features` is all that training needs.
"""
