"""Making a model better at an objective."""
