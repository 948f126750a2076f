"""The supervisor inside a Space: standard library only (Python 3.9 or later), imports nothing of the rest."""
