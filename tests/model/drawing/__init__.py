"""Draws steps from a row of choices and chance: a part for each noun."""
