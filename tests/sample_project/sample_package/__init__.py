"""A project that has a RoPE kernel."""
