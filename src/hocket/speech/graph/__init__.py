"""What can be said: lexicon, language model, and the decoding graph made of both.

May import speech.input, speech.corpus (pronunciations), errors.
"""
