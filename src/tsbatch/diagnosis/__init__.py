"""Where the time of a request went, and what to change: what ``tsbatch diagnose`` and ``tsbatch top`` are made of."""
