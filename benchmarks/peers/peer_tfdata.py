"""tf.data: decodes the part of a JPEG that a crop needs. variant: "" for plain bilinear, "antialias"."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf
from contestant import Batches, Spec, main


def make(spec: Spec) -> Batches:
    tf.random.set_seed(spec.seed)
    given = None if spec.boxes is None else tf.constant(np.load(spec.boxes), tf.int32)
    side, batches = spec.side, -(-spec.count // spec.batch)

    def choose(data: Any, number: Any) -> Any:
        shape = tf.image.extract_jpeg_shape(data)
        if not spec.train:
            top_left = tf.cast(tf.round((shape[:2] - side) / 2), tf.int32)
            return tf.concat([top_left, [side, side]], 0)
        if given is not None:
            return given[number]
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape,
            bounding_boxes=tf.zeros([1, 0, 4]),
            area_range=spec.scale,
            aspect_ratio_range=spec.ratio,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([begin[:2], size[:2]], 0)

    def sample(path: Any, number: Any) -> tuple[Any, Any]:
        data = tf.io.read_file(path)
        image = tf.image.decode_and_crop_jpeg(data, choose(data, number), channels=3)
        if spec.train:
            image = tf.cast(image, tf.float32)  # the same pixels, and resizing is faster than from uint8
            image = tf.cast(tf.image.resize(image, (side, side), antialias=spec.variant == "antialias"), tf.uint8)
        return tf.ensure_shape(image, (side, side, 3)), number

    dataset = tf.data.Dataset.from_tensor_slices((spec.paths(), np.arange(spec.count)))
    dataset = dataset.shuffle(spec.count, seed=spec.seed, reshuffle_each_iteration=True).repeat()
    dataset = dataset.map(sample, num_parallel_calls=2 * spec.workers).batch(spec.batch).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = spec.workers  # the threads; more calls than that keep them busy
    endless = dataset.with_options(options).as_numpy_iterator()

    def epoch() -> Iterator[tuple[Any, Any]]:
        return (next(endless) for _ in range(batches))

    return epoch


if __name__ == "__main__":
    main(make, ("tensorflow-cpu", "numpy"))
