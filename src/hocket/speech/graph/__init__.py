"""What can be said: lexicon, language model, and the decoding graph made of both.

May import speech.input, speech.gmm (senones), speech.decode (units of scoring), errors; and, only
on request, speech.corpus for pronunciations.
"""
