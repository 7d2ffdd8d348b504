"""Results of runs as pictures: charts, and HTML pages that are one file each."""
