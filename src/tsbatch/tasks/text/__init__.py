"""What the tasks on texts share."""
