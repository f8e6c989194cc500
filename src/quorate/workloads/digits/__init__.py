"""Scikit-learn's own small images of handwritten digits, and a small residual network."""
