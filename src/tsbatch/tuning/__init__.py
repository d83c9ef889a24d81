"""Tune the settings of a model: change one at a time, and keep a change only if it helps."""
