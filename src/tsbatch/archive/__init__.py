"""The archive format: read, write, list, verify and compare model archives."""
