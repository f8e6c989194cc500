"""Gossip: exchanges along the edges of a graph, requests to single workers, and the graphs themselves."""
