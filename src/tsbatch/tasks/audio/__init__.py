"""What the tasks on sound share."""
