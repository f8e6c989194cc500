"""What several tests use: real processes, and what they leave behind."""
