"""What Perdure costs, measured on this machine: `make bench`, or `python -m bench [--json FILE] [PART …]`.

Everything is printed in one table beside what the machine itself takes for a sync and for a process, since nobody else's milliseconds mean
anything here. Models are scripted and answer at once; what they take is subtracted where a row says so.
"""
