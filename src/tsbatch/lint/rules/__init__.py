"""The rules of lint, one module for each kind of document or topic."""
