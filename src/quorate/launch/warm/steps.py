"""How many steps `timing` looks at."""

STEPS = 6
"""Steps of a script: one for memory, one more to warm up, and the timed ones."""
MOST_STEPS = 500
"""That are timed: a script that prints a line in each is not to fill the screen."""
SECONDS = 5.0
"""For which steps are timed where a script makes more: what a machine does besides changes from second to second."""
