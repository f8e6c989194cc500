"""Checkpoints: the state that a training needs to continue, written whole or not at all."""
