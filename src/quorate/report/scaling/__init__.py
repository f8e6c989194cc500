"""How a training goes with more workers: what was measured, what follows, and its page."""
