"""Every function of Python's own standard library: which module does it come from?"""
