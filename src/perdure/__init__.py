"""Perdure: a durable runtime for coding agents. `import perdure` stays cheap: names load when they are used."""
