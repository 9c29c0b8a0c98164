"""Public implementations, each brought to the contract of apply_rope in a file of its own."""

# What --impl calls them, and where they are.
ADAPTERS: dict[str, str] = {}
