"""What runs came to, to be looked at: charts and one self-contained HTML page."""
