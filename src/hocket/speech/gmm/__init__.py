"""The GMM-HMM that aligns the training data: mixtures, their training, alignments.

May import speech.features, speech.graph, speech.input, support, errors.
"""
