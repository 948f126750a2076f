"""One streaming protocol over every provider. No retries inside: each attempt is a record of the log."""
