"""The release that this supervisor's code is of: a driver of another one lets it end when nothing runs under it, and starts its own."""

RELEASE = "0.1.0"
