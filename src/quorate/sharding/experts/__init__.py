"""Layers of experts (mixture of experts): a router sends each token to a few of many modules of one kind."""
