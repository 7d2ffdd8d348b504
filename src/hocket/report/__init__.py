"""Results of runs as pictures: charts, and HTML pages that are one file each.

A report is drawn from files alone. May import record, support, errors; never runtime, strategies,
speech or `hocket.api`.
"""
