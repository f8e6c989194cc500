"""`make compatibility`: which choices of a training go together, from trainings of all pairs of them."""
