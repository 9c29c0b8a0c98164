"""Loads the harness into the project's own suite."""

pytest_plugins = ["properties.plugin"]
