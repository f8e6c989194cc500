"""One run: its folder, its lock, its address, and what the launcher asks of its workers."""
