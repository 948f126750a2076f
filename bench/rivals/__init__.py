"""What the others do and take, in the smallest program that their own pages ask for. `make rivals` installs them into a place of their own.

Each module is one system, run as `python -m bench.rivals.MODULE crash FOLDER`, which begins or goes on with the one run in that folder and prints the
final answer, or `… turns FOLDER COUNT`, which prints how many milliseconds each turn of one call took.
"""
