"""Fields related through their components: MultisetCCA, complex pairs."""
