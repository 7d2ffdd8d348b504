"""What can be said: lexicon, language model, senones, and the decoding graph made of them.

May import speech.input, speech.units, support, errors; and, only on request, speech.corpus for
pronunciations.
"""
