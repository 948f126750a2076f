"""Programs decide the next Action from the state; tools say what can be done and how far it may reach."""
