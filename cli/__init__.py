"""Ingle's command line: the only part that knows a terminal."""
