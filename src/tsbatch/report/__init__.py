"""A single HTML file with the results of a load test, a diagnosis, a plan or a tuning."""
