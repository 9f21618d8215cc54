# The face of the package. It may import models, and runtime's public face and llama.py; never a terminal.
"""Smaller models, with proof."""
