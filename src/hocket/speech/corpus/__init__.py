"""Speech without a network: corpora that a synthesiser speaks (the extra `hocket[corpus]`)."""
