"""Starting workers and joining them, real and virtual."""
