"""Certify components that anyone computed: in one read, by arithmetic that no fit shares."""
