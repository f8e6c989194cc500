"""The workers of one run as processes on this machine: started, watched, ended."""
