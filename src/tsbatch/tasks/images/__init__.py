"""Code that the image tasks share."""
