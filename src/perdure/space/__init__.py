"""Where effects happen: operations by key, a fence, custody, and images of the workspace. Knows no models and no log."""
