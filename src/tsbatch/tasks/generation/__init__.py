"""What the tasks that make text share."""
