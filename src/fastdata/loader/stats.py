"""What a Loader counts."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.data.rendering import Timing

__all__ = ["Stats"]

QUICKER = {
    "read_s": "RAMDataset, which keeps the bytes in memory",
    "decode_s": "a smaller --size of the store, a codec without decoding (rgb), or more workers",
    "resize_s": "antialias=False, or a smaller --size of the store",
}


@dataclass
class Stats:
    """What a loader has done so far, in this process.

    Attributes:
        batches, samples: delivered.
        wait_s: seconds that the consumer waited for a batch.
        work_s: seconds that workers spent making them (with DALI: that this process spent on them), of which
        read_s, decode_s, resize_s: waiting for the images' bytes; decoding; resizing, cropping and flipping.
        slots, slots_in_use: batches that shared memory holds room for, and how many of these are being filled, waiting or held.
        slot_bytes: shared memory of all slots.
        copies: batches that were handed out as a copy, because the consumer held too many.
        fallbacks: samples that DALI was to decode, and the CPU decoded as backend="torch" does.
    """

    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    resize_s: float = 0.0
    slots: int = 0
    slots_in_use: int = 0
    slot_bytes: int = 0
    copies: int = 0
    fallbacks: int = 0

    def add(self, wait_s: float, work_s: float, timing: Timing) -> None:
        """Count the times of one more batch."""
        self.wait_s += wait_s
        self.work_s += work_s
        self.read_s += timing.read_s
        self.decode_s += timing.decode_s
        self.resize_s += timing.resize_s

    def advice(self, before: Stats) -> str:
        """The first thing to change for a quicker loader: about what its workers spent most time on since `before`."""
        spent = {name: getattr(self, name) - getattr(before, name) for name in QUICKER}
        most = max(spent, key=lambda name: spent[name])
        rest = self.work_s - before.work_s - sum(spent.values())
        return QUICKER[most] if spent[most] > max(rest, 0.0) else "more workers"
