"""Code of the task tensor."""
