"""The ready-made handlers, one task a file."""
