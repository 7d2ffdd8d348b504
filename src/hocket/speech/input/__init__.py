"""Reading the user's data: data directories and other sources, splits, audio, Kaldi's archives.

May import speech.errors, core, support, errors.
"""
