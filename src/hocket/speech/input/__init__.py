"""Reading the user's data: data directories and other sources, splits, audio, Kaldi's archives.

May import speech.features (for Kaldi's archives), speech.steps, core, support, errors.
"""
