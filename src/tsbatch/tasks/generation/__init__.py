"""Code that the text-generating tasks share."""
