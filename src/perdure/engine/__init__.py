"""Who drives, when and where."""
