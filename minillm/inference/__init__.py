"""Running a trained model: cache, sampling, generation."""
