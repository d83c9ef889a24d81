"""Code that tasks of every kind share."""
