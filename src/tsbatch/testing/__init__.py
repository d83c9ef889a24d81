"""Tools to test and run handlers without a server: batch invariance, pytest plugin, offline batches."""
