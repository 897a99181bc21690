"""Arrays with any number of axes: .npy, .npz and NIfTI."""
