"""Arrays with any number of axes: .npy, .npz, NIfTI, DICOM series, and TIFF and PNG files."""
