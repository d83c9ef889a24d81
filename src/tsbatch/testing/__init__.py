"""Handlers in tests and scripts: batch invariance, the pytest plugin, offline batches."""
