"""The GMM-HMM that aligns: mixtures, their training, senones, alignments.

May import speech.features, speech.graph, speech.input, support, errors.
"""
