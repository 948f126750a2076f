"""What pure reducers make of the records, one a noun. Rebuilding it does no I/O and runs nothing."""
