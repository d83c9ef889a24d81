"""Ray Serve from a desk: find a cluster or start one here, deploy an archive, say how it is, remove it."""
