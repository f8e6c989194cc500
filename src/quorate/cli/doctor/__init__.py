"""`quorate doctor`: what works on this machine. Facts are probed apart from what is made of them."""
