"""The crash campaign: random violence against real sessions, judged by an oracle."""
