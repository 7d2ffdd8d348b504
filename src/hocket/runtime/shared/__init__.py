"""What both worlds share: the loop that advances strategies, each learner's account, boundaries.

May import experiment, record, data, optim, codecs, models, core, support, errors; never `net`,
`real`, `sim` or `launch`.
"""
