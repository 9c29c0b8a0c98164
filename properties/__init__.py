"""What must hold, and the judge that decides it."""
