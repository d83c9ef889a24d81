"""Code that the text tasks share."""
