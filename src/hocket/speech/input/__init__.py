"""What users bring: data directories and other sources, splits, audio files, Kaldi's archives.

May import speech.errors, core, support, errors.
"""
