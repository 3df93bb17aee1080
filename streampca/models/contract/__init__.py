"""What every method declares: parameters, request, the one fit, the registry of kinds."""
