"""Checkpoints: what a training needs to go on, written so that it is there whole or not at all."""
