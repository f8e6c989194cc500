"""Figures of one run that need no schema: topics share them with the closing line and the live page."""
