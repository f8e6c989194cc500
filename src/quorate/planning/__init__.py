"""The layouts of a model over workers that fit, with predicted times of their steps, from measured or published
figures."""
