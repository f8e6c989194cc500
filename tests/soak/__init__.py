"""Many real kills, one after the other: `make soak`; `make test` runs a few of them."""
