"""How fast kernels are: beside the limit of the card and beside PyTorch, or, without a card, what the limits are."""
