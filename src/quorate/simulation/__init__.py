"""Simulations of many workers: times alone, by events, with the decisions of real rounds; or with real gradients."""
