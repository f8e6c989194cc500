"""A run under way, as far as its records tell by now: its state, in words, on a terminal and in the browser."""
