"""From audio to a task, and from a model to word errors.

May import record, data, models, core, support, errors: neither strategies nor runtime, so that
speech knows nothing of who trains. Inside, `prepare` puts the rooms in order, `kaldi_files` goes
around them, and `task` is the seam to training; `features` is all that training needs. The rooms
are layers, too: decode, gmm, graph, then features and corpus, then input.
"""
