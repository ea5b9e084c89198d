"""What starting from another task's weights, or training together, does to a task's work."""
