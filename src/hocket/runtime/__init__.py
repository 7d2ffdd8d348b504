"""The two worlds in which strategies run. Knows no strategy by name."""
