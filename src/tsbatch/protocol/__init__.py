"""From the bytes of a request to items, and from results to the bytes of a reply."""
