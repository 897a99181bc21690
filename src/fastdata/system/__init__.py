"""What fastdata asks of the operating system, and of torch beyond its public names."""
