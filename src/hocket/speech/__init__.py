"""Speech: from audio to features. Corpora, alignments and decoding are to come."""
