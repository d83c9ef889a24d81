"""Which features share a forward pass: planning, fault isolation, deduplication, memory limits."""
