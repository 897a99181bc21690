"""What goes with an optimizer: rates, groups of parameters, an average of the weights."""
