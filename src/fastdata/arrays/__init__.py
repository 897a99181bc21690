"""Arrays of any number of axes: .npy, .npz, NIfTI, DICOM series, and stacks of 16-bit images."""
