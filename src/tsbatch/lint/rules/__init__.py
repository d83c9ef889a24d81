"""The lint rules, grouped by the document they read."""
