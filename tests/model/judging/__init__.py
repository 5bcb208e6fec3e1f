"""Runs programs against a broker, and judges what clients see by the model: a part for each noun."""
