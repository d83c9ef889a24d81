"""Manage Ray Serve: find or start a cluster, deploy an archive, show its status, remove it."""
