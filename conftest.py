"""Loads the harness."""

pytest_plugins = ["properties.plugin"]
