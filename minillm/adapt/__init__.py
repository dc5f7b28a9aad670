"""Weights to weights: low-rank adapters."""
