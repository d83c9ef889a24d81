"""Load models, and run them with engines."""
