"""What a fit has found: frozen results by kind, and what they make of a block of rows."""
