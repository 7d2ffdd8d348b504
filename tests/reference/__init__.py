"""Slow, obvious twins in float64, written from the papers."""
