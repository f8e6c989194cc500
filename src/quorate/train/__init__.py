"""One replica at work: the user's optimizer made to agree, and what happens at the end of a backward pass."""
