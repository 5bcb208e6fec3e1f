"""Work on very many objects, a part in each turn."""
