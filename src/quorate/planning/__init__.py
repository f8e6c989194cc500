"""Which layout of a model over workers fits, and how long its steps would take, from measured or published figures."""
