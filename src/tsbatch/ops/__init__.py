"""What is done from a desk: archives, servers, offline runs. Uses the core; the core never uses this."""
