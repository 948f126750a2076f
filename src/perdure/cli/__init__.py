"""The command line: a thin caller of the Python API, one module a command group, imported when it is used."""
