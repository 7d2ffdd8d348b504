"""Synthesised speech: corpora that are made without a download (the extra `hocket[corpus]`).

May import speech.input, core, support, errors. `espeak.py` alone imports the synthesiser,
which is GPL-3.
"""
