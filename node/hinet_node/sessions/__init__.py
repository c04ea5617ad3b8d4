"""Sessions with the household's other devices: finding, dialling, accepting, and passing messages. SPEC section 5."""
