"""Measuring a server: the load, what became of each request, statistics, and what they say."""
