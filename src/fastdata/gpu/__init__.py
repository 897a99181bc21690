"""Work on the device, and copies to it: prefetching, normalization, crops of resident images, augmentation."""
