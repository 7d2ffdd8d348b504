"""One file per claim; see hocket.reproduce."""
