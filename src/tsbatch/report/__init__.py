"""One HTML file that says what was measured: from a load test or a diagnosis, for people who were not there."""
