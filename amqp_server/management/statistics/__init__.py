"""Counters, rates, samples and metrics."""
