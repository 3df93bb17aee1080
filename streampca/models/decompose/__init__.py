"""The ways to principal components, shared by the families: passes, eigenproblems, assembly."""
