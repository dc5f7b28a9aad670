"""The transformer and nothing else: ops and reshapes, forward above backward."""
