"""What runs on the device, or feeds it: copies ahead, integers to floats, boxes of images that stay there, augmentation."""
