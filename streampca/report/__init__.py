"""A fitted model for people: cards in notebooks, and a page that stands alone."""
