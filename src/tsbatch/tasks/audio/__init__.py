"""Code that the audio tasks share."""
