"""Work on the device, and copies to it: prefetching, normalization, augmentation."""
