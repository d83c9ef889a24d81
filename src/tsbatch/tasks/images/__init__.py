"""What the tasks on images share."""
