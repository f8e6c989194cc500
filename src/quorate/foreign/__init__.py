"""Parameters that another framework computes with (JAX, Keras, TensorFlow), as strategies see them.

A mirror of the parameters in memory of torch, and an optimizer of torch whose step is the framework's own update.
"""
