"""The driver: recover, or do the one next Action, and commit it. Only here do a log and a Space change together."""
