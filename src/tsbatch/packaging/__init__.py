"""Build an archive from a model folder."""
