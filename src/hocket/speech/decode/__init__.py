"""From a model's scores to words, and from words to error rates with their confidence.

May import the other rooms of speech, record, models, core, support, errors.
"""
